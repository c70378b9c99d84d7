"""Search of covers: a program is cut into subgraphs, each distinct one is searched once, and the results are stitched.

Every search is an ordinary run with its own directory; whole.json lists them (docs/whole-models.md). A subgraph of one
operator may stay as it is, so every program has a cover. No cover is kept that is estimated above the unfused program.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, Unpack

import msgspec

from mirage_formal.cache.lock import lock_directory
from mirage_formal.codegen.cost import estimate
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import embed, encode
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.partition.cover_evidence import write_cover_evidence
from mirage_formal.partition.covers import (
    Cover,
    WholePart,
    cover_record,
    least_costs_by_kernels,
    make_cover,
    replace_part,
    select_covers,
)
from mirage_formal.partition.merging import Merger
from mirage_formal.partition.partition import (
    Offers,
    Partition,
    PartLimits,
    Price,
    Subgraph,
    floor_us,
    is_single_kernel_best,
    partition_program,
    partitions,
)
from mirage_formal.partition.search_directory import (
    earlier_search,
    number_of,
    open_cover_directory,
    remove_unused_searches,
)
from mirage_formal.partition.spaces import is_searchable, part_config, part_kernels
from mirage_formal.partition.whole_report import KEEP, WholeReport
from mirage_formal.records import SUMMARY_FILE, read_file, seal_record, sha256, write_atomic
from mirage_formal.records.partition import PARTS, WHOLE_FILE, WholeRecord
from mirage_formal.run.driver import NextSearches, RunArguments, next_search_task, open_executor, run_search
from mirage_formal.run.progress import Watch, ignore_progress
from mirage_formal.run.result_cache.cache_lookup import is_stored
from mirage_formal.run.results.result import Result
from mirage_formal.run.results.run_report import RunReport
from mirage_formal.run.settings import NO_TIME_S, Job, SearchJob, Settings, escape_undecodable, identity, make_job
from mirage_formal.run.task_values import NextSearchTask
from mirage_formal.search.horizontal_fusion.slices import extract_subgraph
from mirage_formal.search.horizontal_fusion.whole_program_fusion import is_fusible
from mirage_formal.search.preprocess import preprocess
from mirage_formal.support.guard import keep_results_on_stop
from mirage_formal.workers.dispatch import Executor

#: Most partitions of the program, each with the costs found by all searches so far.
_ROUNDS: Final = 16
#: Share of a time limit for searches of subgraphs; the rest is for covers and files.
_SEARCHES: Final = 0.9
#: Share of a time limit below which no further search is started.
_TOO_LITTLE: Final = 0.05
#: Largest share of the remaining time for one search, so that some is left for others.
_PART: Final = 1 / 2
#: Microseconds added to the estimate of each kernel when subgraphs are merged: none, and a slower launch.
_KERNEL_US: Final = (0.0, 10.0)

#: Most searches of later subgraphs for each worker that a search leaves idle.
_AHEAD: Final = 4

Status = Literal["complete", "interrupted", "time-limit"]


def search_covers(
    program: KernelGraph, settings: Settings, out: Path, *, tried: bool = False, **about: Unpack[RunArguments]
) -> WholeReport:
    """Cut a program into subgraphs, search each distinct one, and write covers of the program to ``out``.

    A subgraph is replaced by a proved candidate, whatever the policy of the settings. It keeps its own operators where
    these are estimated to be faster or no candidate was found. Several covers are reported. None is estimated above the
    unfused program, which is a cover itself. Ctrl-C ends the search of a subgraph as in ``run``, and then the whole;
    with ``resume`` it is continued.

    Args:
        program: The program.
        settings: Settings of the user.
        out: The directory.
        tried: Whether the whole program was searched as one before, so that it is no subgraph.
        about: Name, source, progress and workers.

    Sound: the whole is equivalent because every part is, see ``stitch``; nothing that is only probable goes in.

    Raises:
        MirageError: A mistake in the program, the settings or the directory.
    """
    settings = msgspec.structs.replace(settings, keep=settings.keep or KEEP)
    job = make_job(program, settings)
    with keep_results_on_stop(), lock_directory(out):
        open_cover_directory(
            out,
            settings.config and escape_undecodable(settings.config),
            identity(job),
            resume=settings.resume,
            force=settings.force,
        )
        with open_executor(settings, about, out) as workers:
            return _CoverSearch(job, settings, out, about, workers, tried=tried).report()


@dataclass(frozen=True, slots=True)
class _Stage:
    """Stage of the search of a cover.

    Attributes:
        cut: Returns the partition whose new subgraphs are searched, by the costs found so far.
        single: Whether single kernels are searched.
    """

    cut: Callable[[_CoverSearch], Partition]
    single: bool


def _stages(job: Job, settings: Settings) -> tuple[_Stage, ...]:
    """Return the stages of a cover's search: subgraphs, then merged ones, then those of covers with few kernels."""
    first = _Stage(lambda search: search._cut(search._expected), single=False)
    if job.engine != "guided":
        return (first,)
    beside = _Stage(lambda search: search._cut(search._beside_products), single=False)
    merged = [_Stage(partial(_CoverSearch._merged, kernel_us=us), single=True) for us in _KERNEL_US]
    few = _Stage(lambda search: search._cut(search._few, _KERNEL_US[-1]), single=True)
    # A user's space is not restricted to single kernels.
    return (first, beside, *merged, *(() if settings.narrowed else (few,)))


class _CoverSearch:
    def __init__(
        self,
        job: Job,
        settings: Settings,
        root: Path,
        about: RunArguments,
        workers: Executor[Any],
        *,
        tried: bool,
    ) -> None:
        self.program = job.program
        self.job = job
        self.target = job.target
        self.identity = identity(job)
        self.reports: dict[KernelGraph, RunReport] = {}  # by exact program, because conditions name its operators
        self.known: dict[KernelGraph, Offers] = {}  # offers found by the searches
        self.alike: dict[KernelGraph, Offers] = {}  # offers by sought graph, which has no views
        self.sought: dict[KernelGraph, KernelGraph] = {}  # sought graphs of parts
        # Lower bounds of the costs that searches of other parts could find.
        self.floors: dict[tuple[KernelGraph, bool], float | None] = {}
        self.limits = PartLimits(job.space.max_block_ops, job.space.max_block_inputs)
        self.merger = Merger(self.program, self.target, self.limits)
        self.limited = 0
        self.stages = _stages(job, settings)  # those that are not over, the present one first
        self.single = False  # whether single kernels are searched: of merged parts, and for covers of few kernels
        self.settings = settings
        self.root = root
        self.name = about.get("name", "program")
        self.source = about.get("source", "")
        self.watch = about.get("watch", ignore_progress)
        self.workers = workers
        self.tried = tried
        if tried:  # a part that differs from it in views only is not searched either
            self.alike[self._look(job.program)] = ()
        self.ahead = NextSearches()
        self.begin = time.monotonic()
        self.status: Status = "complete"
        self.over = False  # whether there is no time for the search of a further part

    def report(self) -> WholeReport:
        self._write((), "interrupted")  # marks the directory as ours, in case of an interruption
        if (stopped := self._searched()) is not None:
            record = self._write((), "interrupted")
            return WholeReport(record, (), (), self._filled(stopped), self.root, self._searches(), self.limited)
        unfused = estimate(self.program, self.target).us
        covers = select_covers((make_cover(self.program, parts, self.target) for parts in self._covers()), unfused)
        record = self._write(covers, self.status)
        remove_unused_searches(self.root, self._runs(), [one.graph_digest for one in record.covers])
        results = self._results(covers, record)
        return WholeReport(record, results, covers, covers[0].parts, self.root, self._searches(), self.limited)

    def _searched(self) -> Partition | None:
        """Search the subgraphs of partitions, then merged subgraphs, then those of covers with few kernels.

        Return the partition at which the user interrupted the search, or None; see ``_explore``.
        """
        while self.stages:
            self.single = self.stages[0].single
            if (stopped := self._explore(self.stages[0])) is not None:
                return stopped
            self.stages = self.stages[1:]
        return None

    def _merged(self, kernel_us: float) -> Partition:
        return self.merger.merged(self._cut(self._least), self._expected_offers, kernel_us)

    def _explore(self, stage: _Stage) -> Partition | None:
        """Cut the program and search its new subgraphs; repeat with the costs found, until there are no new ones.

        Returns:
            The partition at which the user interrupted the search, or None.
        """
        for _ in range(_ROUNDS):
            if self.over:
                break
            cut = stage.cut(self)
            self.limited = max(self.limited, cut.limited)
            order = self._new_parts(cut)
            for number, part in enumerate(order):
                if not is_searchable(part.program, self.job, self.settings):  # it was priced without a proof
                    self.known[part.program] = ()
                    continue
                report = self._search(part, order[number + 1 :])
                if self.status == "interrupted":
                    return cut
                if report is not None:
                    found = least_costs_by_kernels(part.program, report, self.target)
                    self.known[part.program] = self.alike[self._look(part.program)] = found
            if not order:
                break
        return None

    def _new_parts(self, cut: Partition) -> list[Subgraph]:
        """Return the parts of a partition that are to be searched and were not, in the order of their searches."""
        fresh = [part for part in cut.parts if part.searched and part.program not in self.known]
        return sorted(fresh, key=self._gain, reverse=True)

    def _gain(self, part: Subgraph) -> float:
        """Return the most microseconds that a search could save for a subgraph; 0 where no lower bound is known."""
        us = self._floor(part.program, cuts=not self.single)
        return 0.0 if us is None else estimate(part.program, self.target).us - us

    def _covers(self) -> Iterator[tuple[WholePart, ...]]:
        """Yield covers from the costs found: with and without merges, with library products, and the unfused program.

        The costs of subgraphs are independent estimates; the estimate of a whole cover is computed after stitching.
        After the time limit no further ones are made but the unfused program.
        """
        for cut in self._cheapest_partitions() if any(self.known.values()) else ():
            yield self._filled(cut)
            if self._is_late():
                break
        yield self._filled(self._cut(_no_search))

    def _cheapest_partitions(self) -> Iterator[Partition]:
        yield (least := self._cut(self._least))
        yield from self._merged_forms(least)
        # What one kernel leaves in the L2 the next one reads for less, which prices of parts of one kernel do not know.
        for prices in (self._offers_of, self._one_kernel):
            for cut in partitions(self.program, self.target, self.limits, prices):
                yield cut
                yield from self._merged_forms(cut)
        yield self._cut(self._library)

    def _merged_forms(self, cut: Partition) -> Iterator[Partition]:
        return (self.merger.merged(cut, self._offers_of, us) for us in _KERNEL_US)

    def _is_late(self) -> bool:
        """Return whether the time limit is over."""
        limit = self.settings.time_limit
        return limit is not None and time.monotonic() - self.begin > limit

    def _cut(self, price: Price, kernel_us: float = 0.0) -> Partition:
        return partition_program(self.program, self.target, self.limits, price, kernel_us)

    def _offers_of(self, part: KernelGraph) -> Offers:
        """Return the offers that searches found for a part; empty if it was not searched, or is no part."""
        return self.known.get(part, ())

    def _one_kernel(self, part: KernelGraph) -> Offers:
        """Return the offers of ``_offers_of`` that have one kernel only."""
        return tuple(offer for offer in self._offers_of(part) if offer[0] == 1)

    def _least(self, part: KernelGraph) -> float | None:
        return min((us for _, us in self._offers_of(part)), default=None)

    def _expected(self, part: KernelGraph) -> float | None:
        """Return the cost of a part: the least that its search has found, or a lower bound if it was not searched."""
        return self._least(part) if part in self.known else self._floor(part, cuts=True)

    def _beside_products(self, part: KernelGraph) -> float | None:
        """Return ``_expected``; None for a part with a matrix product, which stays a library call."""
        return None if _multiplies(part) else self._expected(part)

    def _library(self, part: KernelGraph) -> float | None:
        """Return ``_least``; None for a part with a matrix product, which stays a library call."""
        return None if _multiplies(part) else self._least(part)

    def _few(self, part: KernelGraph) -> float | None:
        """Return the cost of a part with a penalty for each kernel but its first; see ``_expected``."""
        if part not in self.known:
            return self._floor(part, cuts=False)
        return min((us + (kernels - 1) * _KERNEL_US[-1] for kernels, us in self._offers_of(part)), default=None)

    def _floor(self, part: KernelGraph, *, cuts: bool) -> float | None:
        """Return ``floor_us`` of a part, or the cost that a search for the same graph found; None without either.

        Without time left no further part has a price, so that the partition ends soon.
        """
        if (part, cuts) not in self.floors:  # every round asks for the same sets of operators
            if self._is_over():
                return None
            whole = self.tried and len(part.ops) == len(self.program.ops)
            most = self.job.space.max_block_inputs
            searched = (
                not whole
                and is_searchable(part, self.job, self.settings, proved=False)
                and not self._too_wide(part, most)
            )
            self.floors[part, cuts] = floor_us(part, self.target, most, cuts=cuts) if searched else None
        us = self.floors[part, cuts]
        if us is None or not self.alike or (found := self.alike.get(self._look(part))) is None:
            return us
        return min((us for _, us in found), default=None)

    def _too_wide(self, part: KernelGraph, most: int) -> bool:
        """Return whether a subgraph has more inputs than one kernel reads, and only single kernels are searched for it.

        Sound: such a search finds nothing. Kernels that are put together read more, see ``part_kernels``.
        """
        plain = preprocess(part, proved=False).program
        wide = len(plain.inputs) > most and len(plain.outputs) == 1 and not is_fusible(plain)
        return wide and not self.settings.narrowed and is_single_kernel_best(part, self.target)

    def _look(self, part: KernelGraph) -> KernelGraph:
        """Return the graph that a part's search looks for: inputs named in order of first use, with default strides."""
        if part not in self.sought:
            program = preprocess(part, proved=False).program
            if program.ops:
                every = range(len(program.ops))
                program = extract_subgraph(program, kernel_types(program), every, program.outputs)[0]
            inputs = tuple(replace(given, strides=row_major(given.tensor.shape)) for given in program.inputs)
            self.sought[part] = replace(program, inputs=inputs)
        return self.sought[part]

    def _expected_offers(self, part: KernelGraph) -> Offers:
        """Return the offers for a merged part: those found, or one kernel at the cost of ``_expected``."""
        us = self._expected(part)
        return self._offers_of(part) or (() if us is None else ((1, us),))

    def _filled(self, cut: Partition) -> tuple[WholePart, ...]:
        """Return every part of a partition with its replacement."""
        found = ((part, self.reports.get(part.program) if part.searched else None) for part in cut.parts)
        return tuple(replace_part(self.program, part, report, self.target) for part, report in found)

    def _searches(self) -> tuple[RunReport, ...]:
        return tuple(self.reports.values())

    def _search(self, part: Subgraph, later: Sequence[Subgraph]) -> RunReport | None:
        """Return the run of a subgraph, which equal subgraphs share; None if there is no time left.

        Idle workers search the later subgraphs meanwhile.
        """
        program = part.program
        if program not in self.reports:
            code, left = digest(program), self._left()
            earlier = earlier_search(self.root, code, program) if self.settings.resume else None
            if earlier is None and self._is_over():
                return None
            self.ahead.propose = partial(self._next_searches, part, later)
            number = 1 + max((number_of(report.directory) for report in self.reports.values()), default=0)
            where = earlier or self.root / PARTS / f"{number:02}-{code[:12]}"
            report = self.reports[program] = run_search(
                program,
                self._own_settings(part, left, resume=earlier is not None),
                where,
                name=f"{self.name}-part-{number_of(where):02}",
                source=self.source,
                watch=self._watched(number_of(where)),
                executor=self.workers,
                ahead=self.ahead,
            )
            self.status = report.summary.status if report.summary.status != "complete" else self.status
        return self.reports[program]

    def _next_searches(self, part: Subgraph, later: Sequence[Subgraph]) -> list[NextSearchTask]:
        """Return the searches of the subgraphs that probably come after a part, for idle workers.

        After the later subgraphs of its partition come those of further partitions, made as if no search found
        anything faster than the unfused program: few searches are wrongly expected. There are none with ``resume``,
        because they may have been made, and none with a time limit: a run waits for them, and a search that its
        deadline ends is lost.
        """
        if self.settings.resume or self.settings.time_limit is not None or self.workers.workers == 1:
            return []
        most, found = _AHEAD * self.workers.workers, dict[SearchJob, NextSearchTask]()
        guess = copy(self)
        guess.known, guess.alike, guess.merger = dict(self.known), dict(self.alike), self.merger.copy_for_guess()
        guess._suppose_unfused(part)
        order = list(later)
        for stage in self.stages:
            guess.single = stage.single
            for _ in range(_ROUNDS):
                for one in order:
                    found |= {task.job: task for task in guess._next_search(one)}
                    guess._suppose_unfused(one)
                    if len(found) >= most:
                        return list(found.values())
                if not (order := guess._new_parts(stage.cut(guess))):
                    break
        return list(found.values())

    def _next_search(self, part: Subgraph) -> Iterator[NextSearchTask]:
        """Yield the search of a part, if it is to be made and no worker has made it."""
        if part.program in self.reports or not is_searchable(part.program, self.job, self.settings):
            return
        settings = self._own_settings(part, None, resume=False)
        if not is_stored("search", make_job(part.program, settings), settings):
            task = next_search_task(part.program, settings)
            if task.job not in self.ahead.found:
                yield task

    def _suppose_unfused(self, part: Subgraph) -> None:
        """Suppose that the search of a part finds nothing faster than its operators one by one."""
        offers = ((kernel_count(part.program), estimate(part.program, self.target).us),)
        self.known[part.program] = self.alike[self._look(part.program)] = offers

    def _is_over(self) -> bool:
        """Return whether too little time is left for a further search; the run then ends at its time limit."""
        left = self._left()
        if left is not None and left <= _TOO_LITTLE * (self.settings.time_limit or 0.0):
            self.status, self.over = "time-limit", True
        return self.over

    def _left(self) -> float | None:
        limit = self.settings.time_limit
        return None if limit is None else _SEARCHES * limit - (time.monotonic() - self.begin)

    def _own_settings(self, part: Subgraph, left: float | None, *, resume: bool) -> Settings:
        limit = None if left is None else max(_PART * left, NO_TIME_S)
        config = part_config(part.program, self.settings)
        # A part's directory belongs to this whole program, see open_whole.
        return msgspec.structs.replace(
            self.settings,
            config=config,
            time_limit=limit,
            resume=resume,
            force=not resume,
            max_states=self.job.space.max_states,
            longer=not self.settings.narrowed,
            max_kernel_ops=part_kernels(
                part.program, self.settings, single=self.single or is_single_kernel_best(part.program, self.target)
            ),
            part=not self.settings.narrowed,
        )

    def _runs(self) -> list[str]:
        """Return the directories of all searches, relative to the root."""
        return sorted(report.directory.relative_to(self.root).as_posix() for report in self.reports.values())

    def _watched(self, number: int) -> Watch:
        """Return a progress callback that adds the number of the subgraph that is searched."""
        return lambda progress: self.watch(replace(progress, remark=progress.remark or f"part {number}"))

    # --- records -----------------------------------------------------------------------------------------------

    def _write(self, covers: Sequence[Cover], status: Status) -> WholeRecord:
        records = tuple(cover_record(one, self.root, self.target) for one in covers)
        evidence = write_cover_evidence(self.root, self.program, records) if records else {}
        record = WholeRecord(
            program=self.name,
            source=escape_undecodable(self.source),
            config=self.settings.config and escape_undecodable(self.settings.config),
            identity=self.identity,
            graph_of_program=embed(self.program),
            status=status,
            unfused_kernels=kernel_count(self.program),
            unfused_us=estimate(self.program, self.target).us,
            covers=records,
            wall_s=round(time.monotonic() - self.begin, 3),
            manifest={
                **{f"{run}/{SUMMARY_FILE}": sha256(read_file(self.root / run / SUMMARY_FILE)) for run in self._runs()},
                **evidence,
            },
        )
        write_atomic(self.root / WHOLE_FILE, seal_record(record))
        return record

    def _results(self, covers: Sequence[Cover], record: WholeRecord) -> tuple[Result, ...]:
        # As in a single run, not before there is a result.
        from mirage_formal.kernel_build.candidate_preference import Alternatives

        evidence = read_file(self.root / WHOLE_FILE)
        names = [one.graph_digest for one in record.covers]
        encoded = [(name[:12], encode(one.graph)) for name, one in zip(names, covers, strict=True)]
        return tuple(
            Result(
                one.graph,
                names[i],
                i + 1,
                Equivalent(evidence, record.covers[i].conditions, record.covers[i].added),
                one.us,
                self.root,
                Alternatives(encoded[i:], self.program, self.target),
            )
            for i, one in enumerate(covers)
        )


def _multiplies(part: KernelGraph) -> bool:
    """Return whether a subgraph has a matrix product."""
    return any(isinstance(op, Op) and op.kind is OpKind.MATMUL for op in part.ops)


def _no_search(part: KernelGraph) -> None:
    """Return no price for any part, so that every operator stays as it is."""


__all__ = ["search_covers"]
