"""An adversary against the checker: edited proofs, invented lemmas, wrong graphs, resealed directories, hostile texts.

Run: .venv/bin/python -m benchmarks.attack [--trials N] [--seed S] [--jobs J] [--only FAMILY] [--number N]

Exit 1 if anything false was accepted, an exception that is no refusal came out, a trial took more than 60 s of
processor time, or a process more than 1 GiB of memory. A trial is named by its family, seed and number, and --only with
--number makes it again alone. The trials do not depend on the number of jobs.

Options:
  --trials N   of all families together [default: 50000]
  --seed N     [default: 1]
  --jobs N     processes [default: processors]
  --only NAME  one family alone
  --number N   one trial alone, with --only
"""

from __future__ import annotations

import faulthandler
import resource
import sys
from concurrent.futures.process import BrokenProcessPool
from time import perf_counter

from benchmarks.harness import in_pool, parser_of, parts, shown

# The generators stand with the tests.
from tests.attack.families import FAMILIES
from tests.attack.trial import Family, Tally, campaign

CHUNK = 250
#: Bytes that a process may hold at most.
MEMORY = 1 << 30
#: Seconds of wall time after which a process that does not even take signals is ended.
STUCK = 1800


def part(family: int, seed: int, first: int, count: int) -> tuple[Tally, int]:
    """Some trials of a family, and the most memory that this process has held."""
    faulthandler.dump_traceback_later(STUCK, exit=True)
    try:
        tally = campaign(FAMILIES[family], seed, range(first, first + count))
    finally:
        faulthandler.cancel_dump_traceback_later()
    # Kilobytes; on macOS bytes, where this is only too strict.
    return tally, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    """Run a campaign; returns the exit code."""
    names = [family.name for family in FAMILIES]
    parser = parser_of(__doc__, only=names)
    given = parser.parse_args()
    if given.number is not None:
        if given.only is None:
            parser.error("--number needs --only")
        tally = campaign(FAMILIES[names.index(given.only)], given.seed, range(given.number, given.number + 1))
        print(*tally.failures or tally.said, sep="\n")
        return 1 if tally.failures else 0
    chosen = {i: family for i, family in enumerate(FAMILIES) if given.only in (None, family.name)}
    counts = {i: max(1, round(given.trials * family.share)) for i, family in chosen.items()}
    begin, most = perf_counter(), 0
    tallies = {i: Tally() for i in counts}
    tasks = [(i, given.seed, some.start, len(some)) for i, count in counts.items() for some in parts(count, CHUNK)]
    for (family, _, first, count), future in shown("trials", in_pool(part, tasks, given.jobs), len(tasks)):
        try:
            tally, memory = future.result()
        except BrokenProcessPool:
            tally, memory = Tally(), 0
            tally.failures.append(f"{FAMILIES[family].name} {given.seed}:{first}+{count}: the process died")
        tallies[family].add(tally)
        most = max(most, memory)
    return report({FAMILIES[i]: tally for i, tally in tallies.items()}, perf_counter() - begin, most)


def report(tallies: dict[Family, Tally], seconds: float, most: int) -> int:
    """Print what became of the trials; returns the exit code."""
    for family, tally in tallies.items():
        print(f"{family.name}: {sum(tally.said.values())} trials")
        for said, count in tally.said.most_common():
            print(f"  {count:7,}  {said}")
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    print(*failures[:20], sep="\n")
    done = sum(sum(tally.said.values()) for tally in tallies.values())
    print(f"{done + len(failures):,} trials, {len(failures)} failures, {seconds:.0f} s, at most {most / 2**20:.0f} MiB")
    return 1 if failures or most > MEMORY else 0


if __name__ == "__main__":
    sys.exit(main())
