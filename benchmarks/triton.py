"""Triton files of every kind of candidate of the examples: interpreted beside float64, compiled for three GPUs.

    python -m benchmarks.triton [--only PATTERN] [--keep 17] [--forms] [--bfloat16] [--no-compile] [--corpus]
        [--out DIR]

Each program of examples/*.py (with --corpus those of examples/corpus at their small sizes) is searched with no further
option; every candidate that is reported, and with --forms every form of it, is made smaller with its own tiles and
written as a file. Triton's interpreter runs the file: its results are held to the derived tolerances, and its own
check must end with 0. Then Triton compiles the file of the candidate's real extents for sm_80, sm_90 and sm_100. Needs
torch and Triton; no GPU. A row is one file; the exit status is 1 if one fails.

Options:
  --only NAME   programs whose names match [default: *]
  --keep N      candidates of each [default: 17]
  --forms       every form of a candidate as well
  --bfloat16    with bfloat16 for float16
  --no-compile  interpret only
  --corpus      the corpus at small sizes instead of the examples
  --out DIR     where files stay; a temporary directory if left out
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import mirage_formal as mf
from benchmarks.harness import ROOT, options
from mirage_formal.cli.graphs.user_file import RUN_NAME
from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.codegen.numerics.shrink import shrink
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.kernel_build.candidate_forms import forms
from mirage_formal.support.errors import MirageError
from tests.kit.graphs import corpus_programs as corpus
from tests.kit.kernels import triton_files as kit

_SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}


def programs(only: str, *, small: bool) -> Iterator[tuple[str, mf.Graph]]:
    """Programs and their names."""
    if small:
        yield from ((name, corpus.build(name, small=True)) for name in corpus.FILES if fnmatch(name, only))
        return
    for path in sorted(path for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("tour")):
        for name, value in runpy.run_path(str(path), run_name=RUN_NAME).items():
            if isinstance(value, mf.Graph) and fnmatch(name, only):
                yield name, value


def candidates(graph: mf.Graph, keep: int, place: Path, *, others: bool) -> Iterator[tuple[str, KernelGraph]]:
    """Candidates of a search, and their forms; a form's running maxima come with it."""
    for result in mf.superoptimize(graph, keep=keep, out=place, measure=0):
        if not others:
            yield f"{result.rank}", result.graph
            continue
        for form in forms(result.graph, kit.H200):
            yield f"{result.rank}-{form.name.replace(' ', '-')}", form.graph


def within(case: kit.Case, ran: kit.Ran) -> str:
    """What is wrong with what the interpreter computed; "" if nothing is."""
    if not ran.results:
        return ran.said.strip().splitlines()[-1]
    expected = result_comparison.expected_results(case.program, case.graph, kit.inputs(case.program))
    types = kernel_types(case.program)
    for i, (value, tolerance) in enumerate(zip(expected.values, expected.tolerances, strict=True)):
        dtype = types[case.program.outputs[i]].dtype
        record = result_comparison.compare_outputs(ran.results[i], value, tolerance, dtype)
        if record.answer == "outside":
            return f"output {i}: error of {record.max_ratio:.3g} tolerances"
    return "" if ran.code == 0 else ran.said.strip()


def main() -> int:
    """The command line."""
    given = options(__doc__)
    root = given.out or Path(tempfile.mkdtemp(prefix="mirage_formal-triton-"))
    files = bad = 0
    for name, graph in programs(given.only, small=given.corpus):
        program = graph.freeze()
        small: list[kit.Case] = []
        real: list[kit.Case] = []
        said: dict[str, str] = {}
        for label, candidate in candidates(graph, given.keep, root / "runs" / name, others=given.forms):
            pair = shrink(program, candidate)
            graphs = (pair.program, pair.candidate, program, candidate)
            if given.bfloat16:
                graphs = tuple(kit.of_type(one, DType.BFLOAT16) for one in graphs)  # type: ignore[assignment]
            try:
                small.append(kit.case(f"{name}-{label}", graphs[0], graphs[1]))
                real.append(kit.case(f"{name}-{label}", graphs[2], graphs[3]))
            except MirageError as error:
                said[f"{name}-{label}"] = str(error).splitlines()[0]
        places = [root / kind / name for kind in ("interpreted", "compiled")]
        for place in places:
            place.mkdir(parents=True, exist_ok=True)
        ran = kit.interpreted(small, places[0], {one.name: kit.inputs(one.program) for one in small})
        said |= {one.name: within(one, ran[one.name]) for one in small}
        for one, rows in ({} if given.no_compile else kit.compiled(real, places[1])).items():
            if isinstance(rows, str):
                said[one] = said[one] or rows.strip().splitlines()[-1]
                continue
            large = [row for row in rows if row["shared"] > _SHARED[row["arch"]]]
            said[one] = said[one] or "; ".join(f"{r['name']} sm_{r['arch']}: {r['shared']} bytes shared" for r in large)
        ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", str(places[0])]
        clean = subprocess.run(ruff, capture_output=True, text=True, check=False)
        wrong = {one: what for one, what in said.items() if what}
        files, bad = files + len(said), bad + len(wrong) + (clean.returncode != 0)
        print(f"{name}: {len(said)} files, {len(said) - len(wrong)} right", flush=True)
        for one, what in wrong.items():
            print(f"  {one}: {what}")
        print(clean.stdout if clean.returncode else "", end="")
    print(f"{files} files, {bad} with findings")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
