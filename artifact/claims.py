"""The claims: what docs/results.md says, the command that shows it, and how its output is judged.

``python -m artifact.claims`` prints artifact/README.md, which a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from artifact.judges import Judge, ends_well, known, proofs, says, searches, structures

Tier = Literal["kick-tires", "cpu", "gpu"]
#: For tables: every cell is what the command writes.
EVERY: Final = ("every number",)


@dataclass(frozen=True, slots=True)
class Claim:
    """A row of the artifact.

    Attributes:
        name: Its name.
        tier: Which option of artifact/run runs it.
        claim: What is claimed.
        paragraph: How the paragraph or table of docs/results.md begins that says it.
        numbers: The numbers of that paragraph which it is about, as they are written there.
        command: What is run from the top of the repository; "PYTHON" is the interpreter. What an earlier call has left
            counts for nothing: it is made again or removed.
        judge: Says why it does not hold.
        expected: The same, in words.
        tolerance: What may differ.
        minutes: On the machine that is named, with nothing else running.
        machine: Where.
    """

    name: str
    tier: Tier
    claim: str
    paragraph: str
    numbers: tuple[str, ...]
    command: str
    judge: Judge
    expected: str
    tolerance: str
    minutes: float
    machine: str


_CPU: Final = "two processors, 8 GiB, g++"
_GPU: Final = "one NVIDIA H200, CUDA 13, torch"

CLAIMS: Final = (
    Claim(
        "searches",
        "kick-tires",
        "search of the ten examples: states, candidates found and reported, seconds",
        "| example | s | states |",
        EVERY,
        "PYTHON -m benchmarks.search_times --repeat 1",
        searches(slower=4.0),
        "the table of docs/results.md",
        "counts exactly; seconds up to 4 times",
        2,
        _CPU,
    ),
    Claim(
        "evidence",
        "kick-tires",
        "a search leaves evidence from which check establishes every candidate again",
        "**Search**, two processors",
        ("1",),
        "PYTHON -m mirage_formal search examples/rmsnorm.py --no-cache --force --out runs/artifact/rmsnorm && "
        "PYTHON -m mirage_formal check runs/artifact/rmsnorm",
        says(r"Candidates established again: 16, of which proved equivalent: 16"),
        "all 16 candidates proved equivalent",
        "none",
        0.5,
        _CPU,
    ),
    Claim(
        "proof-times",
        "kick-tires",
        "what proofs cost (after *evidence*, whose candidates are a part of those of the page)",
        "**Proofs**, one core",
        ("1,054", "3.9", "10.0", "5.0", "12.3", "2.5", "5.8"),
        "PYTHON -m benchmarks.proof_times --repeat 1 runs/artifact/rmsnorm",
        proofs(slower=6.0),
        "none is not proved; medians of proving and replaying",
        "medians up to 6 times",
        0.2,
        _CPU,
    ),
    Claim(
        "structures",
        "kick-tires",
        "RMSNorm at 11 of the paper's operators: guided search has the 26 structures of the reference",
        "**The paper's search statistics**",
        ("11", "0.1", "26"),
        "rm -rf runs/artifact/table5 && "
        "PYTHON -m mirage_formal.reproduce table5 --arms guided --ops 11 --out runs/artifact/table5",
        structures,
        "26 in the column of the reference's",
        "none",
        0.2,
        _CPU,
    ),
    Claim(
        "adversary-small",
        "kick-tires",
        "edited proofs, forged directories and hostile files: nothing false is accepted (a hundredth of the trials)",
        "`make fuzz` begins with",
        ("210",),
        "PYTHON -m benchmarks.attack --trials 500 --jobs 2",
        ends_well,
        "500 trials, 0 failures, less memory than the bound",
        "none",
        1,
        _CPU,
    ),
    Claim(
        "fuzz",
        "cpu",
        "the adversary, random pairs, random programs and mutants, in full",
        "`make fuzz` begins with",
        ("50,000", "18,000", "10,000", "40,585", "0.5"),
        "make fuzz",
        says(r"\b50,000 trials, 0 failures", r"\bgood\b"),
        "no failures; the share of unknown mutants",
        "none for failures; the number of pairs that are proved is a function of the seed",
        100,
        _CPU,
    ),
    Claim(
        "random-programs",
        "cpu",
        "random programs: none is refused, finds nothing, is estimated above the program, or computes something else",
        "`.venv/bin/python -m benchmarks.fuzz_programs",
        ("2", "12", "1,000"),
        "PYTHON -m benchmarks.fuzz_programs --count 1000 --seed 42200 --time-limit 4 --check --emulate --again "
        "--out runs/artifact/thousand && PYTHON -m benchmarks.unknown runs/artifact/thousand/runs/*/",
        says(r"1000 programs, 0 failed"),
        "0 of 1000 failed, and at most 1 % of the candidates unknown",
        "the number of candidates, as searches end by the clock",
        100,
        _CPU,
    ),
    Claim(
        "unknown",
        "cpu",
        "candidates of random programs that are neither accepted nor refuted",
        "`.venv/bin/python -m benchmarks.unknown",
        ("255", "20", "55", "6,298", "0.9", "1,000"),
        "PYTHON -m benchmarks.fuzz_programs --count 20 --seed 60000 --time-limit 8 --again --out runs/artifact/fuzz && "
        "PYTHON -m benchmarks.unknown runs/artifact/fuzz/runs/*/",
        known(most=1.0, least=100),
        "at most 1 % unknown, of at least 100 candidates",
        "the number of candidates, as searches end by the clock",
        6,
        _CPU,
    ),
    Claim(
        "constants",
        "cpu",
        "24 constants of real programs: all pairs are proved and replayed",
        "`.venv/bin/python -m benchmarks.constant_times`",
        ("24", "1", "3", "1e-5", "2", "6,336", "1.8", "2.9", "8", "1.7", "2.8"),
        "PYTHON -m benchmarks.constant_times",
        ends_well,
        "0 in every row of those that are not proved",
        "milliseconds",
        10,
        _CPU,
    ),
    Claim(
        "cover-of-mla",
        "cpu",
        "the cover of mla: 3 kernels for 7",
        "Of mla, whose one-kernel candidates",
        ("3", "7", "13.0", "22.3"),
        "PYTHON -m mirage_formal search examples/mla.py --no-cache --force --out runs/artifact/mla",
        says(r"3 of 7 +13\.0 of 22\.3"),
        "estimates of 13.0 and 22.3 us",
        "none",
        1,
        _CPU,
    ),
    Claim(
        "decoder-layer",
        "cpu",
        "one Llama-3-8B decoder layer, proved as a whole",
        "One Llama-3-8B decoder layer",
        ("3", "8", "39", "5", "34", "1", "123.5", "201.3", "21.0"),
        "PYTHON -m mirage_formal search examples/decoder_layer.py --no-cache --force --out runs/artifact/layer && "
        "PYTHON -m mirage_formal check runs/artifact/layer",
        says(r"8 of 34 +123\.5 of 201\.3", r"whole program \S+, cover 1 \S+ equivalent"),
        "estimates of 123.5 and 201.3 us; check establishes the whole",
        "seconds",
        4,
        _CPU,
    ),
    Claim(
        "corpus",
        "cpu",
        "programs nobody tuned for: all have a proved candidate",
        "**Programs nobody tuned for**",
        ("106", "278", "818", "87", "82", "91", "86"),
        "PYTHON -m benchmarks.corpus --jobs 2 --again --out runs/artifact/corpus",
        says(r"\| programs \| 106 \|", r"\| equivalent \| 106 \|", r"\| at or below unfused \| 106 \|"),
        "106 of 106 proved, none above its operators one by one",
        "kernels of programs whose search ends by the clock",
        30,
        _CPU,
    ),
    Claim(
        "paper",
        "cpu",
        "the paper's search statistics, with the exhaustive engine and without pruning",
        "**The paper's search statistics**",
        ("2.5", "28", "8", "5", "60"),
        "rm -rf runs/artifact/reproduce && make reproduce REPRODUCE=runs/artifact/reproduce",
        ends_well,
        "the tables of docs/reproduction; 28 s on 8 threads is the paper's own",
        "seconds; counts of rows that the clock stopped",
        40,
        _CPU,
    ),
    Claim(
        "counts-behind-claims",
        "cpu",
        "the tests assert the counts behind the claims",
        "`make test` asserts",
        ("5,000", "20,000", "1,200", "2,000", "100"),
        "make test",
        says(r"\d+ passed"),
        "all tests pass",
        "none",
        20,
        _CPU,
    ),
    Claim(
        "kernels",
        "gpu",
        "kernels beside torch, torch.compile and attention libraries; numerics at three scales; sanitizers",
        "**Kernels, one NVIDIA H200**",
        ("0.1", "1", "8", "1.56", "1.62", "0.05", "1.50", "1.54"),
        "make gpu-bench && make gpu-sanitize",
        ends_well,
        "every row within tolerance, sanitizers clean, the tables of benchmarks/results-h200.md and results-h100.md",
        "times 10 %, where the runs are those of `make gpu-runs` and tuned as that file says",
        120,
        f"{_GPU}; an H100 for 1.50 and 1.54",
    ),
    Claim(
        "kernel-table",
        "gpu",
        "microseconds and ratios of the examples (written by *kernels*)",
        "| program | b = 1, us |",
        EVERY,
        "test -s runs/gpu/results.md && cat runs/gpu/results.md",
        says(r"\| attn \|", r"\| decode \|"),
        "the columns ours, ratio and x read-only",
        "times 10 %",
        1,
        _GPU,
    ),
    Claim(
        "corpus-kernels",
        "gpu",
        "programs of the corpus beside torch.compile",
        "**Programs nobody tuned for**",
        ("1.39", "1.38", "30", "0.9", "0.91", "83", "0.1", "1", "8"),
        "PYTHON -m benchmarks.corpus_gpu run runs/artifact/corpus --autotune",
        ends_well,
        "the table of benchmarks/results-corpus-h200.md",
        "times 10 %; kernels come from `python -m benchmarks.corpus_gpu build runs/artifact/corpus` after *corpus*",
        120,
        _GPU,
    ),
)

_HEAD: Final = """# Artifact

Every measured claim of docs/results.md, with the command that shows it. `python -m artifact.claims` prints this page; a
test compares it, and finds a number of docs/results.md without a row.

```
artifact/run --kick-tires      # about 5 minutes on two processors; no GPU, no network
artifact/run --cpu             # these and all that a CPU can show; some hours
artifact/run --gpu             # on a machine with a GPU, with the runs that `make gpu-runs` has made
artifact/run --only NAME       # one row
```

Each row prints PASS, FAIL with the reason, or SKIP where it cannot run; the outputs and `report.md` are in
`runs/artifact`, and the exit code is 1 if any row fails. Set up with `make setup`, or build the image (`Dockerfile`);
what is run needs no network after that. Times are judged with the factors of the column *tolerance*, which assume that
nothing else runs; counts and verdicts do not depend on the machine.
"""


def page() -> str:
    """Text of artifact/README.md."""
    lines = [_HEAD]
    for tier in ("kick-tires", "cpu", "gpu"):
        lines += [f"## --{tier}\n", "| name | claim | numbers | command | expected | tolerance | minutes | machine |"]
        lines.append("|---|---|---|---|---|---|--:|---|")
        for one in CLAIMS:
            if one.tier == tier:
                command = f"`{one.command.replace('PYTHON', '.venv/bin/python')}`"
                cells = (one.name, one.claim, "; ".join(one.numbers), command, one.expected, one.tolerance)
                lines.append(f"| {' | '.join(cells)} | {one.minutes:g} | {one.machine} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page(), end="")
