"""Commands that only show something: ``show``, ``explain``, ``axioms``, ``docs`` and ``schema``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from mirage_formal.cli.utilities import (
    Json,
    answer,
    choice_option,
    count_option,
    flag_option,
    option,
    reject_options,
)
from mirage_formal.support import options
from mirage_formal.support.errors import RunError, SpaceError, UnsupportedError
from mirage_formal.support.resources import data_dir
from mirage_formal.support.terminal import escape_line, json_text

if TYPE_CHECKING:
    from mirage_formal.cli.graphs.subject import LoadedGraph
    from mirage_formal.graph.graph import KernelGraph

_WHAT = "A run, a candidate, kernels, a JSON file of graphs, or a Python file of programs."
_Path = Annotated[Path, typer.Argument(metavar="PATH", help=_WHAT)]
_Rank = Annotated[int | None, count_option("--candidate", "The candidate, or cover, of this rank", "the best")]
_Form = Annotated[str, choice_option("--form", ("text", "dot", "json"), "How a graph is written; dot is for Graphviz.")]
_Directory = Annotated[Path, typer.Argument(metavar="PATH", help="A run, or the directory of one candidate.")]
_Formulas = Annotated[str, choice_option("--form", ("text", "latex"), "How formulas are written.")]
_SENTENCES = "Explain the built kernels instead: who loads, computes and stores what, and why that is right."
_Kernels = Annotated[bool, flag_option("--kernels", _SENTENCES)]
_FOLLOWED = "With --kernels: the element of each result that is followed to its thread."
_Element = Annotated[str | None, option("--element", "I,J,...", _FOLLOWED, "one in the middle")]
_AxiomProgram = Annotated[
    Path | None, typer.Argument(metavar="[PROGRAM]", help="Python file that defines a program.", show_default="none")
]
_Wanted = Annotated[str | None, option("--program", "NAME", "Name of the program, if the file has several.", "all")]
_AxiomFiles = Annotated[list[str] | None, option("--axioms", "FILE.smt2", "File of axioms to add; repeatable.", "none")]
_Without = Annotated[list[str] | None, option("--without-axiom", "NAME", "Axiom to switch off; repeatable.", "none")]
_Space = Annotated[str | None, option("--config", "PRESET|FILE.toml", "Search space of the comparison.", "tiny")]
_NAMES = "Name of a document, as in errors."
_Document = Annotated[str | None, typer.Argument(metavar="[NAME]", help=_NAMES, show_default="list them")]
_Where = Annotated[bool, flag_option("--path", "Print where the document is instead of what it says.")]
_SCHEMAS: Final = {
    "answer": "what commands print for programs: --json, and --progress json",
    "run": "the files of a run's directory",
    "graph": "graphs: mugraph.json, and files that verify reads",
}
_Schema = Annotated[
    str | None, typer.Argument(metavar="[answer|run|graph]", help="Which schema.", show_default="list them")
]


def _text(graph: KernelGraph) -> str:
    from mirage_formal.graph.formats.text import to_text

    return _plain_lines(to_text(graph))


def _dot(graph: KernelGraph) -> str:
    from mirage_formal.graph.formats.dot import to_dot

    return to_dot(graph)


def _graph_json(graph: KernelGraph) -> str:
    from mirage_formal.graph.formats.json import to_json

    return json_text(to_json(graph))


def _plain_lines(text: str) -> str:
    """Escape each line of a text whose line breaks are ours and which may contain names from files."""
    return "\n".join(escape_line(line, 1 << 20) for line in text.split("\n"))


#: How a graph is printed, by the value of --form. What draws graphs adds its form here.
FORMS: Final[dict[str, Callable[[KernelGraph], str]]] = {"text": _text, "dot": _dot, "json": _graph_json}


def show_command(path: _Path, candidate: _Rank = None, form: _Form = "text", json: Json = False) -> None:
    """Print a graph: a program, a candidate of a run, or the graph of kernels."""
    from mirage_formal.cli.graphs.subject import read_graphs

    found = read_graphs(path, candidate)
    if json:
        rows = [{"name": one.name, "verdict": one.verdict or None, "graph": FORMS[form](one.graph)} for one in found]
        raise typer.Exit(answer("show", 0, rows))
    for one in found:
        if form == "text":
            print("\n".join(_head(one)))
        print(FORMS[form](one.graph).rstrip("\n"))


def _head(one: LoadedGraph) -> list[str]:
    """Return the facts about a graph, as comment lines of its text."""
    said = [f"; {escape_line(one.name)}"]
    if one.verdict:
        said.append(f"; verdict {one.verdict}, as its author says; `mirage-formal check` establishes it")
    if one.kernels is not None:
        said.append(f"; kernels in {escape_line(str(one.kernels))}")
    return said


def explain_command(
    path: _Directory,
    candidate: _Rank = None,
    form: _Formulas = "text",
    kernels: _Kernels = False,
    element: _Element = None,
    json: Json = False,
) -> None:
    """Print a candidate's proof as formulas: the program's, every step, the laws used, the candidate's, the conditions.

    The proof is made again and compared with the one of the directory, which the checker replays. Exit code 1 if the
    candidate has no proof, or the checker refuses it.

    With --kernels it says in sentences what its built kernels do: the elements that a block loads in an iteration, what
    threads hold, the block and the thread that store an element, and what was compared to decide that it is the
    µGraph's. Exit code 1 if that is not recorded as decided.
    """
    from mirage_formal.cli.graphs.subject import read_graph

    reject_options({"--form latex": form == "latex"} if kernels else {"--element": element}, "--kernels")
    one = read_graph(path, candidate)
    if kernels:
        _explain_kernels(one, path, element, json=json)
    if one.program is None or one.proof is None:
        got = f"verdict {one.verdict}" if one.verdict else "no proof"
        hint = "explain a candidate; of a whole program, the candidates of its parts" if not one.verdict else ""
        what = f"expected a candidate with a proof, got one with {got}"
        raise UnsupportedError(what, where=str(path), hint=hint or "mirage-formal search writes proofs")
    from mirage_formal.check.equivalence import replay_with_obligations
    from mirage_formal.check.proof.ring import ProofError
    from mirage_formal.graph.verdict import Equivalent
    from mirage_formal.prove.equality.explain import explain
    from mirage_formal.prove.equality.prove import prove
    from mirage_formal.records import read_file

    stored = read_file(one.proof)
    again = prove(one.program, one.graph)
    same = isinstance(again, Equivalent) and again.proof == stored
    try:
        held = replay_with_obligations(one.program, one.graph, stored)
        replay, conditions, added = "accepted", held.conditions, held.added
    except ProofError as error:
        replay, conditions, added = f"refused: {error}", (), ()
    text = explain(one.program, one.graph, latex=form == "latex")
    code = 0 if replay == "accepted" else 1
    if json:
        values = {
            "name": one.name,
            "text": text,
            "replay": replay,
            "same_proof": same,
            "conditions": conditions,
            "added": added,
        }
        raise typer.Exit(answer("explain", code, values))
    print(_plain_lines(text).rstrip("\n"))
    print("\n".join(["", "Conditions", *(f"  {escape_line(one)}" for one in conditions or ("none",))]))
    print(
        "\n".join(
            ["Conditions that the program does not have", *(f"  {escape_line(one)}" for one in added or ("none",))]
        )
    )
    origin = "are those of the proof in this directory" if same else "are made anew: the proof here is another one"
    print(f"\nThe formulas {origin}. The checker's replay: {escape_line(replay)}.")
    raise typer.Exit(code)


def _explain_kernels(one: LoadedGraph, path: Path, element: str | None, *, json: bool) -> NoReturn:
    """Print the explanation of a candidate's kernels, and end with code 1 if a claim is not recorded as decided."""
    from mirage_formal.report.kernels.directory_explanation import explain_kernels

    if one.kernels is None:
        hint = "mirage-formal tools build RUN_DIR makes them; --candidate names another candidate"
        raise RunError("expected a candidate with kernels, got one without", where=str(path), hint=hint)
    at = None if element is None else _coordinates(element)
    found = explain_kernels(one.kernels, at)
    code = 0 if all(kernel.decided for kernel in found) else 1
    if json:
        rows = [
            {"kernel": kernel.name, **{part.title: list(part.sentences) for part in kernel.sections}}
            for kernel in found
        ]
        raise typer.Exit(answer("explain", code, {"name": one.name, "kernels": rows}))
    for kernel in found:
        for part in kernel.sections:
            print(f"{escape_line(kernel.name)}: {part.title}")
            print("\n".join(f"  {escape_line(sentence, 4000)}" for sentence in part.sentences), end="\n\n")
    raise typer.Exit(code)


def _coordinates(typed: str) -> tuple[int, ...]:
    """Return the coordinates of an element that a user typed.

    Raises:
        SpaceError: They are no whole numbers from 0 up, separated by commas.
    """
    try:
        found = tuple(int(part) for part in typed.split(","))
        if min(found) >= 0:
            return found
    except ValueError:
        pass
    what = f"expected whole numbers from 0 up, separated by commas, got {typed!r:.80}"
    raise SpaceError(what, where="--element", hint="as in --element 0,12; leave it out for one in the middle")


def axioms_command(
    file: _AxiomProgram = None,
    program: _Wanted = None,
    axioms: _AxiomFiles = None,
    without: _Without = None,
    config: _Space = None,
    json: Json = False,
) -> None:
    """List the axioms of abstract expressions, and what added ones and those switched off change.

    With PROGRAM, a small search by each engine is run with the project's axioms and with the chosen ones.
    """
    from rich.console import Console

    from mirage_formal.run.axiom_effects import compare_axioms, list_axioms, print_axioms

    report = list_axioms(axioms or (), without or ())
    if file is not None:
        import msgspec

        from mirage_formal.cli.graphs.user_file import choose, load_programs

        settings = options.Settings(config=config, axioms=axioms or None, without_axioms=without or None)
        chosen = choose(load_programs(file), program, file)
        effects = {name: compare_axioms(graph, settings) for name, graph in chosen.items()}
        report = msgspec.structs.replace(report, effects=effects)
    if json:
        raise typer.Exit(answer("axioms", 0, report))
    print_axioms(report, Console())


def docs_command(name: _Document = None, path: _Where = False, json: Json = False) -> None:
    """List the documents that come with the package, or print one."""
    root = data_dir("docs")
    files = sorted(root.rglob("*.md"), key=lambda file: (len(file.parts), file))
    found = {file.relative_to(root).with_suffix("").as_posix(): file for file in files}
    if name is None:
        titles = {stem: _title(file) for stem, file in found.items()}
        if json:
            raise typer.Exit(answer("docs", 0, {"directory": str(root), "documents": titles}))
        width = max(map(len, titles), default=0)
        print("\n".join([f"documents in {root}", *(f"  {stem:<{width}}  {title}" for stem, title in titles.items())]))
        return
    short = {path.rpartition("/")[2]: file for path, file in reversed(found.items())}
    file = _named(name.removesuffix(".md"), short | found, "docs")
    if json:
        text = None if path else file.read_text(encoding="utf-8")
        raise typer.Exit(answer("docs", 0, {"name": file.stem, "path": str(file), "text": text}))
    print(str(file) if path else file.read_text(encoding="utf-8").rstrip("\n"))


def schema_command(name: _Schema = None, json: Json = False) -> None:
    """Print a JSON schema: of what commands answer, of the files of a run, or of graphs."""
    if name is None:
        if json:
            raise typer.Exit(answer("schema", 0, _SCHEMAS))
        print("\n".join(f"{short:<8}{what}" for short, what in _SCHEMAS.items()))
        return
    text = _schema(options.check_value("schema", name, options.word_type([*_SCHEMAS]), "leave it out for the list"))
    if json:
        import msgspec

        raise typer.Exit(answer("schema", 0, msgspec.json.decode(text)))
    print(text.rstrip("\n"))


def _schema(name: str) -> str:
    if name == "graph":
        from mirage_formal.graph.formats.json import graph_schema_text

        return graph_schema_text()
    if name == "run":
        from mirage_formal.records.schema import run_directory_schema_text as run_schema_text

        return run_schema_text()
    from mirage_formal.records.answer import answer_schema_text

    return answer_schema_text()


def _named(name: str, found: dict[str, Path], where: str) -> Path:
    if name not in found:
        what = f"expected the name of a document, got {name!r}"
        raise SpaceError(what, where=where, hint=f"mirage-formal {where} lists them")
    return found[name]


def _title(file: Path) -> str:
    first = file.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ")


__all__ = ["FORMS", "axioms_command", "docs_command", "explain_command", "schema_command", "show_command"]
