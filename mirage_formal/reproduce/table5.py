"""The paper's Table 5: search effort for RMSNorm by the limit of block operators, for each arm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from msgspec.structs import replace as with_fields

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.text import to_text
from mirage_formal.records.reproduction import Comparison, Row, Table5, UnprunedEstimate
from mirage_formal.reproduce.engine_comparison import compare_engines
from mirage_formal.reproduce.inputs import WORKLOADS
from mirage_formal.reproduce.output.paper_tables import NO_EXPRESSIONS, SOURCE, THREADS_1, THREADS_8
from mirage_formal.reproduce.output.plot import draw
from mirage_formal.reproduce.output.render import csv_text, table5_markdown
from mirage_formal.reproduce.row_journal import RecordFile, expect_writable_result, host_with_load, record_key, write
from mirage_formal.reproduce.search_variants import ARMS, RowLimits, SearchVariant, run_row
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.space import load_space
from mirage_formal.support.errors import SpaceError

#: Limits of operators in the paper, which count the program's inputs.
PAPER_OPS: Final = tuple(range(5, 12))
#: Limits of block operators (ours) at which the search without pruning is completed, to measure its growth.
CALIBRATION: Final = (1, 2)
#: Default limits, with which the whole table takes about 16 minutes on two processors.
DEFAULT_LIMITS: Final = RowLimits(60.0, 1_000_000)
#: Factor of the time limit of these searches to that of a row.
_CALIBRATION_TIMES: Final = 8

#: Callback with the current search, its finished units, and all of its units.
Show = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Parameters of one ``table5`` run.

    Attributes:
        out: Output directory.
        arms: Names of arms.
        ops: Limits of operators, counted as in the paper.
        config: Search space.
        workers: Number of worker processes.
        limits: Limits of a row.
    """

    out: Path
    arms: tuple[str, ...] = tuple(ARMS)
    ops: tuple[int, ...] = PAPER_OPS
    config: str = "paper"
    workers: int = 2
    limits: RowLimits = DEFAULT_LIMITS


def table5(plan: TablePlan, show: Show) -> Table5:
    """Run the missing rows, and write table5.json, .csv, .md and .svg.

    Raises:
        SpaceError: An unknown arm, a limit that leaves no block operator, or an unusable space.
        RunError: The directory cannot be used.
    """
    run = _Run(plan, show)
    rows = list(run.rows())
    table = Table5(
        program=to_text(run.program).strip(),
        space=run.space.name,
        kernel_ops=run.space.max_kernel_ops,
        time_limit_s=plan.limits.seconds,
        host=run.host,
        rows=tuple(rows),
        comparisons=tuple(run.comparisons(rows)),
        published={"8 threads": THREADS_8, "1 thread": THREADS_1, "8 threads, no expressions": NO_EXPRESSIONS},
        published_by=SOURCE,
    )
    lean = without_graphs(table)
    write(plan.out, "table5", lean, table5_markdown(lean))
    (plan.out / "table5.csv").write_text(csv_text(lean.rows))
    draw(lean, plan.out / "table5.svg")
    return lean


def without_graphs(table: Table5) -> Table5:
    """Return the table without the candidates' graphs."""
    return with_fields(table, rows=tuple(with_fields(row, graphs=()) for row in table.rows))


class _Run:
    def __init__(self, plan: TablePlan, show: Show) -> None:
        for name in plan.arms:
            if name not in ARMS:
                raise SpaceError(
                    f"expected one of {', '.join(ARMS)}, got {name!r}", where="--arms", hint="separate arms by commas"
                )
        self.program = WORKLOADS["rmsnorm"](1)
        inputs = len(self.program.inputs)
        for ops in plan.ops:
            if ops <= inputs:
                what = f"expected more than the {inputs} inputs, which the paper counts too, got {ops}"
                raise SpaceError(what, where="--ops", hint="the paper's limits are 5 to 11")
        self.space = load_space(plan.config)
        self.plan = plan
        expect_writable_result(plan.out, "table5", Table5, (".md", ".csv", ".svg"))
        self.host = host_with_load()
        self._show = show
        self._rows = RecordFile(plan.out / "rows.jsonl", Row)
        self._comparisons = RecordFile(plan.out / "comparisons.jsonl", Comparison)

    def rows(self) -> Iterator[Row]:
        """Return every row asked for, taken from the directory or run."""
        arms = [ARMS[name] for name in ARMS if name in self.plan.arms]
        growth = self._growth_rows() if ARMS["unpruned"] in arms else []
        yield from growth
        for paper_ops in sorted(set(self.plan.ops)):
            for arm in arms:
                row = self._row(arm, self._bounded(paper_ops - len(self.program.inputs)), self.plan.limits)
                yield extrapolate(row, growth) if arm.name == "unpruned" else row

    def _growth_rows(self) -> list[Row]:
        """Return rows without pruning that are small enough to complete, from which growth is measured."""
        limits = replace(self.plan.limits, seconds=_CALIBRATION_TIMES * self.plan.limits.seconds)
        return [self._row(ARMS["unpruned"], self._bounded(ops), limits) for ops in CALIBRATION]

    def _bounded(self, block_ops: int) -> SearchSpace:
        return self.space.with_overrides(max_block_ops=block_ops)

    def _row(self, arm: SearchVariant, space: SearchSpace, limits: RowLimits) -> Row:
        workers = self.plan.workers if arm.parallel else 1
        key = record_key("row", digest(self.program), space, arm.name, workers, limits.seconds, limits.states)
        found = self._rows.get(key)
        if found is not None:
            return found
        name = f"{arm.title}, {space.max_block_ops + len(self.program.inputs)} operators"
        return self._rows.add(
            run_row(
                key,
                arm,
                self.program,
                space,
                replace(limits, workers=workers),
                lambda done, total: self._show(name, done, total),
            )
        )

    def comparisons(self, rows: Sequence[Row]) -> Iterator[Comparison]:
        """Yield the comparison of guided and exhaustive rows, wherever both exist and the latter is complete."""
        by = {(row.arm, row.paper_ops): row for row in rows if row.complete}
        for paper_ops in sorted({row.paper_ops for row in rows}):
            guided = by.get(("guided", paper_ops))
            exhaustive = by.get(("exhaustive", paper_ops)) or by.get(("exhaustive-1", paper_ops))
            if guided is None or exhaustive is None:
                continue
            key = record_key("comparison", guided.graphs, exhaustive.graphs, paper_ops)
            found = self._comparisons.get(key)
            yield found or self._comparisons.add(compare_engines(key, self.program, guided, exhaustive))


def extrapolate(row: Row, growth: Sequence[Row]) -> Row:
    """Return a row with an estimate for the whole search; unchanged if it is complete or the growth is not known.

    The number of states is assumed to grow by the factor measured between the two smallest limits. It grows faster from
    limit to limit, so the estimate is rather too small.
    """
    if row.complete or not all(one.complete for one in growth) or row.states == 0:
        return row
    first, second = growth
    factor = second.states / first.states
    states = second.states * factor ** (row.block_ops - second.block_ops)
    measured = {one.block_ops: one.states for one in growth}
    seconds = states * row.wall_s / row.states
    return with_fields(
        row, extrapolated=UnprunedEstimate(states=states, seconds=seconds, factor=factor, measured=measured)
    )
