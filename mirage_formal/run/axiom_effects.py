"""List of the axioms in force, and their effects on the search of a program: with and without a user's changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal

import msgspec
from msgspec import structs
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AxiomChoice, axioms_in_force, read_choice
from mirage_formal.logic.axiom_laws import laws_of
from mirage_formal.logic.axioms import FILES, OPAQUE_FUNCTIONS
from mirage_formal.logic.consistency import check_consistency
from mirage_formal.logic.sexpr import format_sexpr, line_of, parse_located_sexprs
from mirage_formal.run.settings import SearchJob, Settings, display_path, make_job, preprocess_job
from mirage_formal.run.task_values import UnitTask
from mirage_formal.run.tasks import plan, search_unit
from mirage_formal.support.options import ENGINES
from mirage_formal.support.resources import data_dir
from mirage_formal.support.terminal import escape_line

Use = Literal["normal form", "law", "models and z3", "off"]
#: States after which one unit of a compared search ends.
COMPARED_STATES: Final = 50_000
#: Space of a compared search: small enough for both engines.
COMPARED_SPACE: Final = "tiny"


class AxiomRow(msgspec.Struct, frozen=True, kw_only=True):
    """An axiom and its use.

    Attributes:
        name: Its name.
        where: File and line.
        statement: Its formula.
        use: "normal form": decided by the normal forms as they are; "law": applied by them to functions; "models and
            z3": they do not decide it, and models in numbers and z3 are asked; "off": switched off.
    """

    name: str
    where: str
    statement: str
    use: Use


class SearchEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one search.

    Attributes:
        engine: The engine.
        axioms: "usual" for those of the project, "chosen" with the user's changes.
        states: Operator applications tried.
        pruned: States that abstract expressions rejected.
        candidates: Distinct candidates.
        cut: Units that ended at their number of states.
    """

    engine: str
    axioms: Literal["usual", "chosen"]
    states: int
    pruned: int
    candidates: int
    cut: int


class AxiomReport(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``mirage-formal axioms``.

    Attributes:
        axioms: All axioms, those that are switched off as well.
        remark: What is not known about their consistency; empty if nothing is open.
        effects: Counts of searches by name of the program; empty without a program.
    """

    axioms: tuple[AxiomRow, ...]
    remark: str = ""
    effects: dict[str, tuple[SearchEffect, ...]] = {}


def list_axioms(files: Sequence[str], without: Sequence[str]) -> AxiomReport:
    """Return all axioms with their uses.

    Raises:
        FormatError: A file is malformed, or its axioms are inconsistent.
        SpaceError: An axiom that is switched off does not exist.
    """
    choice, every = read_choice(files, without), read_choice(files)
    remark = check_consistency(choice)
    unfit, off = laws_of(choice).unfit, set(without)
    places = _axiom_locations() | {one.name: one.where for one in every.added}
    added = {one.name for one in every.added}

    def use(name: str) -> Use:
        if name in off:
            return "off"
        return "normal form" if name not in added else "models and z3" if name in unfit else "law"

    rows = [
        AxiomRow(name=name, where=places[name], statement=format_sexpr(axiom.body), use=use(name))
        for name, axiom in axioms_in_force(every).axioms.items()
    ]
    return AxiomReport(axioms=tuple(rows), remark=remark)


def _axiom_locations() -> dict[str, str]:
    """Return file and line of each axiom of the project."""
    found: dict[str, str] = {}
    for file in FILES:
        path = data_dir("axioms") / file
        text = path.read_text(encoding="utf-8")
        for command, position in parse_located_sexprs(text, str(path)):
            if command[0] == "assert":
                found[str(command[1][3])] = f"{display_path(path)}:{line_of(text, position)}"
    one = found.pop("sub-f")
    return found | {f"sub-{function}": one for function in OPAQUE_FUNCTIONS}


def compare_axioms(program: KernelGraph, settings: Settings) -> tuple[SearchEffect, ...]:
    """Search a program with both engines, under the axioms of the project and under the chosen ones.

    Every unit of a search ends after ``COMPARED_STATES`` states. Nothing is verified.

    Raises:
        MirageError: An engine does not take the program, or a setting is wrong.
    """
    found = []
    for engine in ENGINES:
        mine = structs.replace(settings, engine=engine, config=settings.config or COMPARED_SPACE)
        job = preprocess_job(make_job(program, structs.replace(mine, max_states=COMPARED_STATES)))
        found += [_search(job, "usual", USUAL_AXIOMS), _search(job, "chosen", job.options.choice)]
    return tuple(found)


def _search(job: SearchJob, axioms: Literal["usual", "chosen"], choice: AxiomChoice) -> SearchEffect:
    options = structs.replace(job.options, choice=choice, max_states=COMPARED_STATES)
    job = replace(job, options=options)
    records = [search_unit(UnitTask(job, "", unit, 0)) for unit in plan(job)]
    return SearchEffect(
        engine=job.engine,
        axioms=axioms,
        states=sum(one.stats.get("states", 0) for one in records),
        pruned=sum(one.pruned.get("expression", 0) for one in records),
        candidates=len({found.digest for one in records for found in one.candidates}),
        cut=sum(one.stats.get("cut", 0) for one in records),
    )


def print_axioms(report: AxiomReport, console: Console) -> None:
    """Print the axioms as a table, and the counts of searches side by side."""
    console.print(
        _table(
            ("axiom", "use", "place", "statement"),
            [(one.name, one.use, one.where, one.statement) for one in report.axioms],
        )
    )
    if report.remark:
        console.print(Text(report.remark), soft_wrap=True)
    for name, effects in report.effects.items():
        heads = ("count", *(f"{one.engine}, {one.axioms} axioms" for one in effects))
        counts = ("states", "pruned", "candidates", "cut")
        rows = [(count, *(f"{getattr(one, count):,}" for one in effects)) for count in counts]
        console.print(_table(heads, rows, title=name))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title and Text(escape_line(title)), title_justify="left")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape_line(cell)) for cell in row))
    return table


__all__ = ["AxiomReport", "AxiomRow", "SearchEffect", "compare_axioms", "list_axioms", "print_axioms"]
