"""Runs of all workloads through the whole pipeline: results, proofs, and the time of each phase."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import decode_graph
from mirage_formal.records import SEARCH_FILE, UnitRecord
from mirage_formal.records.reproduction import Workload, Workloads
from mirage_formal.reproduce.inputs import WORKLOADS
from mirage_formal.reproduce.output.paper_tables import ARTIFACT_GRAPHS
from mirage_formal.reproduce.output.render import workloads_markdown
from mirage_formal.reproduce.row_journal import RecordFile, expect_writable_result, host_with_load, record_key, write
from mirage_formal.reproduce.structural_equality import structure
from mirage_formal.run.driver import run_search
from mirage_formal.run.progress import Progress, RunPhase
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import Settings, choose_config
from mirage_formal.search.space import load_space
from mirage_formal.support.errors import SpaceError

#: Callback with the current search, its finished pieces, and all of its pieces.
Show = Callable[[str, int, int], None]


@dataclass(slots=True)
class Clock:
    """Progress callback that records the time of each phase, and when the first unit with a candidate was done."""

    show: Callable[[str, int, int], None]
    name: str
    first_s: float | None = None
    spent: dict[RunPhase, float] = field(default_factory=dict)
    _phase: RunPhase = RunPhase.PLAN
    _since: float = 0.0

    def __call__(self, progress: Progress) -> None:
        """Add the seconds since the last event to its phase, note the first candidate's time, and show progress."""
        if self.first_s is None and progress.candidates:
            self.first_s = progress.elapsed_s
        self.spent[self._phase] = self.spent.get(self._phase, 0.0) + progress.elapsed_s - self._since
        self._phase, self._since = progress.phase, progress.elapsed_s
        self.show(f"{self.name}: {progress.phase.value}", progress.done, max(progress.total, progress.done))


def workloads(out: Path, names: tuple[str, ...], batches: tuple[int, ...], workers: int, show: Show) -> Workloads:
    """Run the missing workloads, and write workloads.json and .md; runs lie below runs/.

    Raises:
        SpaceError: An unknown workload.
        RunError: The directory cannot be used.
    """
    for name in names:
        if name not in WORKLOADS:
            raise SpaceError(
                f"expected one of {', '.join(WORKLOADS)}, got {name!r}", where="--names", hint="separate by commas"
            )
    expect_writable_result(out, "workloads", Workloads)
    here = host_with_load()
    rows = tuple(_rows(out, names, batches, workers, show))
    result = Workloads(host=here, rows=rows)
    write(out, "workloads", result, workloads_markdown(result))
    return result


def _rows(out: Path, names: tuple[str, ...], batches: tuple[int, ...], workers: int, show: Show) -> Iterator[Workload]:
    known = RecordFile(out / "workloads.jsonl", Workload)
    for name in names:
        for batch in batches:
            program = WORKLOADS[name](batch)
            preset = choose_config(program)
            key = record_key("workload", digest(program), load_space(preset), workers)
            found = known.get(key)
            if found is None:
                label = f"{name}-b{batch}"
                clock = Clock(show, label)
                folder = out / "runs" / f"{label}-{key[:12]}"
                # A row that is not finished has no times: its search starts again.
                settings = Settings(config=preset, workers=workers, force=True, cache=False)
                report = run_search(program, settings, folder, name=label, watch=clock)
                if report.summary.status == "interrupted":
                    raise KeyboardInterrupt
                found = known.add(_row(key, name, batch, workers, report, clock))
            yield found


def _row(key: str, name: str, batch: int, workers: int, report: RunReport, clock: Clock) -> Workload:
    summary = report.summary
    spent = clock.spent
    return Workload(
        key=key,
        name=name,
        batch=batch,
        preset=summary.config,
        workers=workers,
        states=summary.states,
        pruned=summary.pruned,
        classes=summary.stats.get("classes", 0),
        oracle_calls=summary.stats.get("oracle_calls", 0),
        cache_hits=summary.stats.get("cache_hits", 0),
        fingerprint_tests=summary.fingerprint_tests,
        candidates=summary.found,
        structures=len(_structures(report.directory)),
        proved=len(summary.candidates),
        not_proved=len(summary.rejected),
        first_s=None if clock.first_s is None else round(clock.first_s, 3),
        search_s=round(spent.get(RunPhase.PLAN, 0.0) + spent.get(RunPhase.SEARCH, 0.0), 3),
        certify_s=round(spent.get(RunPhase.CERTIFY, 0.0), 3),
        prove_s=round(spent.get(RunPhase.PROVE, 0.0), 3),
        wall_s=summary.wall_s,
        artifact=ARTIFACT_GRAPHS.get(name, {}).get(batch),
    )


def _structures(folder: Path) -> set[str]:
    """Return the distinct structures among all candidates that a run's search found."""
    decoder = msgspec.json.Decoder(UnitRecord)
    units = [decoder.decode(text) for text in (folder / SEARCH_FILE).read_bytes().splitlines()]
    graphs = {found.digest: found.graph for unit in units for found in unit.candidates}
    return {structure(decode_graph(graph)) for graph in graphs.values()}
