"""Runs of the examples with kernels, for benchmarks/gpu_bench.py: directories <example>-b<batch>.

    .venv/bin/python -m benchmarks.gpu_runs --out runs/gpu [--batches 1 8 16] [--count 8]
    .venv/bin/python -m benchmarks.gpu_runs --out runs/gpu --tune [--device NAME] [--kernels 128] [--count 48]
                                            [--times FILE] [--finalists 3] [--backend auto]

A run that is there already is searched again only with --again, one that was stopped is continued; kernels are always
built anew, and what a device has said about earlier ones goes with them.

With --tune kernels are tuned instead (docs/kernels.md): the first call makes those that are to be timed, in OUT/tuning;
then, where the GPU is, `python -m mirage_formal.gpu tune --place OUT/tuning`; with --device NAME, a file of
OUT/tuning/times, the second call builds the candidates that have the least sums of times. --times FILE are such times
that were kept (benchmarks/times/nvidia-h200.jsonl), of which those count whose kernels have the same CUDA C++ and
launches as then: there is no first call, and what is built is what they chose, wherever it is built.

With --backend auto Triton files are timed beside the kernels, on this machine's GPU; `benchmarks.gpu_bench --backend
auto` then has those that are faster in its table.

Options:
  --out DIR              [required]
  --batches N...         [default: 1 8 16]
  --count N              candidates that get kernels [default: 8]
  --arch NAME...         architecture to compile for; repeatable; sm_90a if left out
  --again                search again what is there
  --workers N            worker processes; one for each processor if left out
  --tune                 tune kernels instead of building the model's best
  --device NAME          the GPU whose times decide
  --times FILE           its times, which become those of OUT/tuning
  --kernels N            kernels of a run that are tried [default: 128]
  --finalists N          candidates that are built from times [default: 3]
  --backend {cuda,auto}  what is tuned [default: cuda]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from benchmarks.harness import ROOT, command, parser_of

#: Name of the run: file and program of examples/, and its search space, if it is not the default. Without a space
#: nothing is reported above the operators one by one, and fused kernels that the model puts there are not measured.
EXAMPLES = {
    "attn": ("attn", "attn", ""),
    "qk": ("qknorm", "qk", ""),
    "qv": ("qknorm", "qv", ""),
    "rmsnorm": ("rmsnorm", "rmsnorm", ""),
    "lora": ("lora", "lora", ""),
    "gated_mlp": ("gated_mlp", "gated_mlp", "mlp"),
    "ntrans": ("ntrans", "ntrans", ""),
    "decode": ("decode", "decode", ""),
}


def main() -> int:
    """The command line."""
    parser = parser_of(__doc__)
    given = parser.parse_args()
    if given.times is not None:
        if given.device is None or given.times.stem != given.device:
            parser.error(f"--times: expected times of --device {given.device}, got {given.times.name}")
        (given.out / "tuning" / "times").mkdir(parents=True, exist_ok=True)
        shutil.copy(given.times, given.out / "tuning" / "times")
    workers = ["--workers", given.workers] if given.workers else []
    runs = []
    for batch in given.batches:
        for name, (file, program, space) in EXAMPLES.items():
            run = given.out / f"{name}-b{batch}"
            runs.append(run)
            if given.again or not (run / "summary.json").is_file():
                more = ["--config", space] if space else []
                if (run / "run.json").is_file():
                    more.append("--force" if given.again else "--resume")
                asked = ["--program", program, "--keep", given.count, *more, *workers, "--out", run.resolve()]
                search = command("mirage_formal.search", f"examples/{file}.py", *asked)
                subprocess.run(search, cwd=ROOT, env={**os.environ, "MIRAGE_BATCH": str(batch)}, check=True)
    if given.tune:
        asked = ["--kernels", given.kernels, "--place", given.out / "tuning", "--backend", given.backend]
        asked += ["--accept", "tested"] if given.backend == "auto" else []  # Triton files are not proved
        asked += ["--finalists", given.finalists, *(["--device", given.device] if given.device else []), *workers]
        return subprocess.run(command("mirage_formal", "tune", *runs, *asked)).returncode
    archs = [x for arch in given.arch or ["sm_90a"] for x in ("--arch", arch)]
    build = command("mirage_formal.kernel_build", *runs, "--count", given.count, *archs, "--force")
    return subprocess.run(build).returncode


if __name__ == "__main__":
    sys.exit(main())
