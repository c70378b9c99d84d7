"""How many candidates of runs stayed unknown: neither accepted nor refuted, as a Markdown table.

    .venv/bin/python -m benchmarks.unknown [--again] [--most PERCENT] RUN_DIR...

A run directory counts with the runs of its parts, at any depth. Of what a search proposed and its run came to verify,
"accepted" was reported; "refuted" differs from the program, by a fingerprint or by a counterexample; "numerics" is
proved equal, and its rounding is too large. Everything else is unknown. The share is that of the unknown ones in all
that is not refuted.

--again looks at each rejected candidate once more, as the present code does: its certificates with the solvers'
answers, its proof and the proof's replay, and a counterexample where it is not accepted, for only that refutes it here.
Candidates are read from the journal; nothing is searched.

Exit 1 if the share is above --most percent.

Options:
  runs RUN_DIR...
  --again          look at each rejected candidate once more
  --most PERCENT   of unknown ones [default: 1]
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import harness
from mirage_formal.graph.formats.json import decode_graph, from_json
from mirage_formal.prove.counterexamples.refute import find_counterexample
from mirage_formal.records import RUN_FILE, SEARCH_FILE, SUMMARY_FILE
from mirage_formal.run.settings import SearchJob, Settings, make_job, preprocess_job
from mirage_formal.run.task_values import AcceptedCandidate, CandidateTask, UncertifiedTensor
from mirage_formal.run.tasks import certify, discharge_texts, verify_candidate

#: Kinds of rejected candidates of which nothing is known, see ``records.RejectedRecord``.
UNKNOWN: Final = ("certificate", "unproved", "proof-refused", "unknown")
HEADS: Final = ("accepted", "refuted", "numerics", *UNKNOWN, "unknown %")


def runs(root: Path) -> list[Path]:
    """A run's directory if it has a summary, and those of its parts; none where nothing was searched."""
    return sorted(path.parent for path in root.rglob(SUMMARY_FILE))


def counts(run: Path, *, again: bool = False) -> Counter[str]:
    """How many candidates of one run are of which kind, by the names of HEADS."""
    summary = json.loads((run / SUMMARY_FILE).read_text())
    kinds = Counter({"accepted": len(summary["candidates"])})
    if again and summary["rejected"]:
        kinds.update(_again(run, summary["rejected"]))
    else:
        kinds.update("refuted" if one["kind"] == "different" else one["kind"] for one in summary["rejected"])
    return kinds


def share(kinds: Counter[str]) -> float:
    """Percent of the candidates that are not refuted of which nothing is known."""
    unknown = sum(kinds[kind] for kind in UNKNOWN)
    return 100 * unknown / max(1, sum(kinds.values()) - kinds["refuted"])


def _again(run: Path, rejected: Sequence[dict[str, Any]]) -> Iterator[str]:
    record = json.loads((run / RUN_FILE).read_text())
    program = from_json(json.dumps(record["program"]), str(run / RUN_FILE))
    settings = Settings(seed=record["identity"]["seed"], accept=record["identity"]["accept"])
    job = preprocess_job(make_job(program, settings))
    units = map(json.loads, (run / SEARCH_FILE).read_text().splitlines())
    graphs = {found["digest"]: b64decode(found["graph"]) for unit in units for found in unit["candidates"]}
    for one in rejected:
        yield "numerics" if one["kind"] == "numerics" else kind_of(job, graphs[one["digest"]])


def kind_of(job: SearchJob, graph: bytes) -> str:
    """What the present code makes of a candidate of a job, by the names of HEADS."""
    task = CandidateTask(job, graph)
    claims = certify(task)
    texts = tuple(dict.fromkeys(claim.text for claim in claims if not isinstance(claim, UncertifiedTensor)))
    certified = not any(isinstance(claim, UncertifiedTensor) for claim in claims) and _refuted_by_both(texts)
    verified = verify_candidate(task)
    if isinstance(verified, AcceptedCandidate):
        digits = () if verified.proof is None else tuple(one.text for one in verified.proof.obligations)
        if not certified:
            return "certificate"
        return "accepted" if _refuted_by_both(digits) else "unknown"
    if find_counterexample(job.program, decode_graph(graph), seed=job.options.seed) is not None:
        return "refuted"
    if verified.kind == "different":  # by a fingerprint, in which functions are random ones
        return "unknown"
    return verified.kind if certified else "certificate"


def _refuted_by_both(texts: tuple[str, ...]) -> bool:
    return all(answer.answer == "unsat" for both in discharge_texts(texts) for answer in both)


def row(name: str, kinds: Counter[str]) -> str:
    """A line of the table."""
    return harness.row(name, *(kinds[head] for head in HEADS[:-1]), f"{share(kinds):.1f}")


def main() -> int:
    """Print the table: a line for each run with unknown candidates, and one for all."""
    parser = harness.parser_of(__doc__)
    given = parser.parse_args()
    print(harness.table(["run", *HEADS], [], range(1 + len(HEADS))))
    everything = Counter[str]()
    for root in given.runs:
        if not root.is_dir():
            parser.error(f"{root}: expected a run's directory, got no directory")
        kinds = Counter[str]()
        for run in runs(root):
            kinds.update(counts(run, again=given.again))
        if share(kinds) > 0:
            print(row(root.name, kinds), flush=True)
        everything += kinds
    print(row("**all**", everything))
    return 1 if share(everything) > given.most else 0


if __name__ == "__main__":
    sys.exit(main())
