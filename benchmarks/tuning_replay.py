"""Replays tuning on recorded times, and prints the tables that its three constants are fitted to (docs/kernels.md).

    python -m benchmarks.tuning_replay PLACE --device NAME [--kernels N ...] [--rungs N ...] [--earlier FILE ...]

PLACE is a tuning directory, such as DIR/tuning of ``benchmarks.gpu_runs --out DIR --tune --times FILE --device NAME``.
Every plan in it is tuned by ``autotune.successive_halving`` with the times of this GPU:

- RUNGS: the least sum of kernel times of a candidate that is found, over the least one of all recorded kernels, mean
  and worst over plans. *Recorded* leaves kernels without a time out of the plan. *All* leaves them in; each counts as
  a trial, and is as slow as the slowest recorded schedule of its kernel. What recorded the times had no such trials.
- SLACK: for every plan, the sum of kernel times of the fastest whole candidate over the least sum.
- NOISE: quantiles of the ratio of two times of kernels of the same text, of this and of earlier files of times.

Options:
  place DIR
  --device NAME      [required]
  --kernels N...     [default: 32 64 128 160]
  --rungs N...       [default: 1 2 3 4 5 6]
  --earlier FILE...  files of times of the same GPU at earlier commits
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.harness import parser_of, row, table
from mirage_formal.autotune import tuning_space
from mirage_formal.autotune.plans import MeasuredTime, PiecePlan, TuningDirectory, TuningPlan
from mirage_formal.autotune.successive_halving import kernel_rungs

QUANTILES = (0.5, 0.9, 0.95, 0.99)


def recorded(plan: TuningPlan, times: Mapping[str, float]) -> TuningPlan:
    """The plan without the kernels that have no time, and without the candidates that need one."""
    number: dict[int, int] = {}
    pieces: list[PiecePlan] = []
    for at, piece in enumerate(plan.pieces):
        if variants := tuple(one for one in piece.variants if one.key in times):
            number[at] = len(pieces)
            pieces.append(msgspec.structs.replace(piece, variants=variants))
    left = (one for one in plan.candidates if all(piece in number for piece in one.pieces))
    candidates = (msgspec.structs.replace(one, pieces=tuple(number[piece] for piece in one.pieces)) for one in left)
    return msgspec.structs.replace(plan, candidates=tuple(candidates), pieces=tuple(pieces))


def completed(plan: TuningPlan, times: Mapping[str, float]) -> dict[str, float | None]:
    """Times of all kernels of a plan: one that was not recorded is as slow as the slowest schedule that was."""
    found: dict[str, float | None] = {}
    for piece in plan.pieces:
        slowest = max((times[one.key] for one in piece.variants if one.key in times), default=None)
        found |= {one.key: times.get(one.key, slowest) for one in piece.variants}
    return found


def replayed(plan: TuningPlan, times: Mapping[str, float | None], kernels: int, rungs: int) -> float:
    """What tuning finds with so many kernels, over the best of all recorded ones."""
    tried: dict[str, float | None] = {}
    for wanted in kernel_rungs(plan, kernels, tried, rungs):
        tried |= {plan.key(at): times[plan.key(at)] for at in wanted}
    return tuning_space.compose_candidates(plan, tried)[0].us / tuning_space.compose_candidates(plan, times)[0].us


def wholes(plan: TuningPlan, times: Mapping[str, float], known: Collection[str]) -> Iterator[tuple[str, float]]:
    """The key and the sum of kernel times of each candidate that was measured as a whole.

    Its kernels have their fastest schedules, or one of them has another one.
    """
    plan = msgspec.structs.replace(plan, candidates=(*plan.candidates, *tuning_space.combine_forms(plan, times)))
    for one in tuning_space.compose_candidates(plan, times):
        pieces, operators = plan.candidates[one.candidate].pieces, plan.candidates[one.candidate].operators[:-1]
        for place, piece in enumerate(pieces):
            alone = times[plan.key((piece, one.variants[place]))]
            for us, at in tuning_space.timed_schedules(plan, piece, times):
                variants = (*one.variants[:place], at, *one.variants[place + 1 :])
                for count in range(len(operators) + 1):
                    for early in map(frozenset, itertools.combinations(operators, count)):
                        key = tuning_space.whole_key(
                            plan, tuning_space.ComposedCandidate(one.candidate, variants, 0.0, early)
                        )
                        if key in known:
                            yield key, one.us + us - alone


def noise(files: Sequence[Path], replays: int) -> list[float]:
    """The ratios, at least 1, of two times of one text in different files, in order."""
    texts = []
    for path in files:
        every = (_line(text) for text in path.read_bytes().splitlines())
        texts.append({x.text: x.us for x in every if x and x.settled and x.text and x.us and x.replays == replays})
    pairs = ((a[text], b[text]) for a, b in itertools.combinations(texts, 2) for text in a.keys() & b.keys())
    return sorted(max(one / other, other / one) for one, other in pairs if one != other)


def _line(text: bytes) -> MeasuredTime | None:
    try:
        return msgspec.json.decode(text, type=MeasuredTime)
    except msgspec.DecodeError:  # the line that names the GPU
        return None


def main() -> int:
    """Print the tables."""
    args = parser_of(__doc__).parse_args()
    place = TuningDirectory(args.place)
    known = place.times(args.device)
    times = {key: one.us for key, one in known.items() if not one.failed}
    plans = {path.name: place.plans.read(path).record.value for path in place.plans.entries()}
    if not plans or not times:
        print(f"{args.place}: no plans, or no times of {args.device}", file=sys.stderr)
        return 1
    print(table("kernels | rungs | recorded, mean | worst | all, mean | worst | in", []))
    for kernels, rungs in itertools.product(args.kernels, args.rungs):
        cells = []
        for every in (False, True):
            found = {}
            for name, plan in plans.items():
                used = plan if every else recorded(plan, times)
                found[name] = replayed(used, completed(used, times), kernels, rungs)
            worst = max(found, key=found.__getitem__)
            cells += [f"{sum(found.values()) / len(found):.4f}", f"{found[worst]:.3f}"]
        print(row(kernels, rungs, *cells, worst), flush=True)
    print(table("plan | kernels | with times | best whole, us | its sum over the least", []))
    for name, plan in plans.items():
        keys = {one.key for piece in plan.pieces for one in piece.variants}
        own = {key: us for key, us in times.items() if key in keys}
        least = tuning_space.compose_candidates(plan, own)[0].us
        measured = sorted((known[key].us, us) for key, us in wholes(plan, own, known))
        said = next(((f"{us:.2f}", f"{total / least:.3f}") for us, total in measured), ("", ""))
        print(row(name, len(keys), len(own), *said), flush=True)
    if args.earlier:
        files = [place.times_path(args.device), *args.earlier]
        print(table("replays | pairs | " + " | ".join(f"{one:.0%}" for one in QUANTILES), []))
        for replays in (4, 15):
            ratios = noise(files, replays)
            print(row(replays, len(ratios), *(f"{ratios[int(one * len(ratios))]:.3f}" for one in QUANTILES)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
