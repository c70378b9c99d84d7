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
    return "\n".join(lines)
