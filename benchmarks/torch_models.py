"""Models of transformers with random weights: padded batches, with and without a cache, beside PyTorch.

    .venv/bin/python -m benchmarks.torch_models [--only FAMILY...] [--types TYPE...] [--jobs 2]

The models are Llama, Qwen3, Gemma 3, GPT-NeoX, Mixtral, BERT, T5 and a decoder layer of Whisper, with tiny sizes
(tests/kit/torch/models.py): with sdpa and eager attention, batches of which one sample is padded on the left, on the
right or not at all, prompts and tokens over cached keys and values, in float32, bfloat16 and float16. Each is imported,
and its programs are evaluated in the module's own element types. NaN and infinities must stand where PyTorch has them,
and the error of each result (its norm, from the module in float64) may be twice that of PyTorch.

Prints a line for each case: its errors beside PyTorch's, and how many operators are in programs. Exit 1 if one is not
within.

Options:
  --only NAME...   [default: all]
  --types NAME...  [default: all three]
  --jobs N         processes at once; 0 is this one [default: 2]
"""

from __future__ import annotations

import sys

from benchmarks.gpu_jobs import short
from benchmarks.harness import in_pool, options, quiet_torch
from tests.kit.torch.models import FAMILIES, TYPES, Case, cases, compared


def line(case: Case) -> tuple[bool, str]:
    """Whether a case is within, and what is printed for it."""
    quiet_torch()
    try:
        found = compared(case)
    except Exception as error:  # a case that fails is a row, whatever fails
        return False, f"{case}: {short(error)}"
    operators = sum(len(region.nodes) for region in found.imported.regions)
    pairs = zip(found.ours, found.eager, strict=True)
    errors = ", ".join(f"{ours:.1e} ({eager:.1e})" for ours, eager in pairs)
    pattern = "" if found.pattern else "; NaN or infinities elsewhere than PyTorch"
    text = f"{case}: {errors}; {operators} operators in {len(found.imported.regions)} programs"
    return found.within, f"{text}, {len(found.imported.left)} left, {found.nan} NaN{pattern}"


def main() -> int:
    """The command line."""
    given = options(__doc__, only=FAMILIES, types=TYPES)
    wanted = cases(given.only, given.types)
    failed = 0
    for _, future in in_pool(line, ((case,) for case in wanted), given.jobs):
        within, text = future.result()
        failed += not within
        print(("" if within else "NOT WITHIN: ") + text, flush=True)
    print(f"{len(wanted)} cases, {failed} not within")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
