"""The interface table as a document, and as errors for the use of unsupported names."""

from __future__ import annotations

from typing import Final

from mirage_formal.frontend.argument_checks import error_at_user_line
from mirage_formal.frontend.mirage_api.rows import SECTIONS, SupportLevel
from mirage_formal.support.errors import UnsupportedError

_BY_NAME: Final = {row.name: row for section in SECTIONS for row in section.rows}
_COMMAND: Final = "python -m mirage_formal.frontend.mirage_api"
_HEAD: Final = f"""\
# The Python interface of the reference system

Programs and hand-written µGraphs that were written for the documented Python interface of Mirage
(mirage-project/mirage) run after `import mirage as mi` is changed to `import mirage_formal as mi`. The tables say what
is offered (yes), accepted without effect and with an `IgnoredOptionWarning` (ignored), or refused with an
`UnsupportedError` that names its row (no). They are printed by `{_COMMAND}`, and
tests try every row, and scripts as that system's benchmarks, demos and tutorials are. A script that makes its graph
behind a main guard runs as a script; `mirage-formal search` says where to put the graph. `search` has no row: here it
is the package of the engines.
"""
#: Rules for reading the first checkpoints, each with the function of the first source that shows it.
_RULES: Final = (
    (
        "inputs are row-major",
        "`PyGraph.new_input` (core.pyx) makes every input `DmemRowMajor`, and whatever layout a "
        "file names, `TBInputLoaderFingerprinter` (input_loader.h) reads it row by row",
    ),
    (
        "`reduction_dimx` is 64 where there is none",
        "`ExecutionPlan::reduction_dimx` (graph.h of threadblock) is `TB_REDUCTION_DIMX` "
        "(type.h), which `Graph::create_reduction_to_dimx_op` (reduction.cc of threadblock) takes",
    ),
    (
        "an output saver adds over the loop: an accumulator stands before each",
        "`TBOutputOp::TBOutputOp` (output.cc) has a tensor for the sum; `TBOutputAccumFingerprinter` "
        "(output_saver.h) copies in the first iteration and adds in the others",
    ),
    (
        "`plan` says what `bgraph` does, or the file is refused",
        "`from_json` (graph.cc of kernel) makes the kernel of `plan`, and reads only layouts of `bgraph`",
    ),
)
_PUBLISHED: Final = """\
## Published graphs

Checkpoints of the first published version (commit 351e4402, May 2024) are objects with `generated_graphs`, and lack
what later versions write ([the format](mirage_json.md)). They are read by these rules. Each is what the source of that
version does, in the function named:

| rule | source of that version |
|---|---|
{rules}

`mirage-formal verify PROGRAM.py FILE` judges each graph of such a file, and `mirage-formal search PROGRAM.py
--checkpoint FILE` (`superoptimize(checkpoint=FILE)`) takes its graphs as the candidates, in place of a search. What was
found is in [bugs found](bugs-found.md#published-graphs-judged)."""


def unsupported_name_error(name: str, what: str = "") -> UnsupportedError:
    """Return the error for the use of a name that is not offered.

    Args:
        name: Name of its row.
        what: The expected and the given; made from the row if left out.

    Returns:
        An error at the user's line that names the row.
    """
    row = _BY_NAME[name]
    text = what or f"expected a name that is offered here, got {name}: {row.difference}"
    hint = f"row {name} of docs/mirage_api.md, which {_COMMAND} prints"
    error = error_at_user_line(UnsupportedError, text, hint)
    assert isinstance(error, UnsupportedError)
    return error


def missing_attribute_error(owner: str, name: str, here: str) -> Exception:
    """Return the error for an attribute that an object has not.

    Args:
        owner: The class of the reference system that the object stands for, or "" for the module.
        name: The attribute.
        here: The kind of the object here.

    Returns:
        The row's error, if the table has the name; else an AttributeError.
    """
    full = f"{owner}.{name}" if owner else name
    row = _BY_NAME.get(full)
    if row is None or name.startswith("__"):
        return AttributeError(f"{here!r} has no attribute {name!r}")
    if row.offer is SupportLevel.NO:
        return unsupported_name_error(full)
    return unsupported_name_error(
        full, f"expected a name that a {here} has, got {full}, which a graph has before it is searched"
    )


def document() -> str:
    """Return the text of docs/mirage_api.md."""
    lines = [_HEAD.rstrip("\n")]
    for section in SECTIONS:
        lines += ["", f"## {section.title}", "", "| name | here | difference, or what to do instead |", "|---|---|---|"]
        lines += [f"| `{row.name}` | {row.offer.value} | {row.difference} |" for row in section.rows]
    lines += ["", _PUBLISHED.format(rules="\n".join(f"| {rule} | {shown} |" for rule, shown in _RULES))]
    return "\n".join(lines)
