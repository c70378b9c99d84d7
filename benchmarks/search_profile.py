"""Processor seconds of each step of the example searches, in one process and one thread, as a Markdown table.

Run: .venv/bin/python -m benchmarks.search_profile [--only EXAMPLE...]

The steps are those that the workers of a run compute: planning, the search of all units with z3's audit, certificates
and proofs with both solvers, fingerprints and special values of the candidates that are reported, and the rounding
estimate of the best. What the calling process adds is not in it: imports, files, the start of workers.

Options:
  --only EXAMPLE...  [default: rmsnorm lora gated_mlp ntrans attn qknorm]
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable
from time import process_time
from typing import Any

from benchmarks.harness import ROOT, options, table
from benchmarks.stages import program_of

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in workers; NumPy reads it when it is loaded

STEPS = ("plan", "search", "certificates", "proofs", "fingerprints", "special values", "rounding")


def seconds_of_steps(example: str) -> dict[str, float]:
    """Processor seconds of each step of one example's search with the default settings."""
    from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession
    from mirage_formal.run import tasks
    from mirage_formal.run.ranking import rank
    from mirage_formal.run.settings import Settings, make_job, preprocess_job
    from mirage_formal.run.task_entry_points import plan, predict_rounding_error
    from mirage_formal.run.task_values import AcceptedCandidate, CandidateTask, CertificateClaim, RoundingTask, UnitTask
    from mirage_formal.run.verify import candidate_numerics

    spent: defaultdict[str, float] = defaultdict(float)

    def timed(step: str, function: Callable[..., Any], *given: Any) -> Any:
        begin = process_time()
        try:
            return function(*given)
        finally:
            spent[step] += process_time() - begin

    settings = Settings()
    job = preprocess_job(make_job(program_of(ROOT / "examples" / f"{example}.py").freeze(), settings))
    units = timed("plan", plan, job).units
    records = [timed("search", tasks.search_unit, UnitTask(job, "", u, settings.audit // len(units))) for u in units]
    check, special = FingerprintSession.check, candidate_numerics.evaluate_special_values
    FingerprintSession.check = lambda *given: timed("fingerprints", check, *given)  # type: ignore[method-assign]
    candidate_numerics.evaluate_special_values = lambda *given: timed("special values", special, *given)
    texts: dict[str, None] = {}
    reported = rank(records)[: job.space.keep]
    for found in reported:
        claims = timed("certificates", tasks.certify, CandidateTask(job, found.graph))
        texts |= {claim.text: None for claim in claims if isinstance(claim, CertificateClaim)}
        judged = timed("proofs", tasks.verify_candidate, CandidateTask(job, found.graph))
        if isinstance(judged, AcceptedCandidate) and judged.proof is not None:
            texts |= {obligation.text: None for obligation in judged.proof.obligations}
    FingerprintSession.check, candidate_numerics.evaluate_special_values = check, special  # type: ignore[method-assign]
    timed("certificates", tasks.discharge_texts, tuple(texts))
    timed("rounding", predict_rounding_error, RoundingTask(CandidateTask(job, reported[0].graph)))
    spent["proofs"] -= spent["fingerprints"] + spent["special values"]
    return spent


def main() -> None:
    """Print the table."""
    rows = []
    for example in options(__doc__).only:
        spent = seconds_of_steps(example)
        rows.append((example, *(f"{spent[step]:.2f}" for step in STEPS), f"{sum(spent.values()):.2f}"))
    print(table(("example", *STEPS, "all"), rows))


if __name__ == "__main__":
    main()
