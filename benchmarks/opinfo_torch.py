"""PyTorch's own operator tests as judge of the import: samples of torch.testing's database for the table.

    .venv/bin/python -m benchmarks.opinfo_torch [--most N] [--types TYPE...] [--only NAME...] [--jobs 2]

Every sample (sample_inputs and reference_inputs: extents and strides, broadcasting, numbers for tensors, large and
extreme values) is imported, its program is evaluated in its own element types, and compared with torch under the
contract of docs/torch.md. --most N takes N of an operator's samples in each type. It needs the extra torch-test.

Prints how many samples of each operator were compared, and each that differs. Exit 1 if one does; 2 if there is no
database.

Options:
  --most N         samples of an operator in one type; all if left out
  --types NAME...  [default: all three]
  --only NAME...   operators, as in exp or nn.functional.elu
  --jobs N         processes at once; 0 is this one [default: 2]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.harness import in_pool, options, parts, quiet_torch
from tests.kit.torch.operator_samples import TYPES, Counts, checked, drawn, operators, samples

#: Of how many operators a process has samples: the database takes long to load.
_CHUNK = 12


def looked_at(names: Sequence[str], types: Sequence[str], most: int | None) -> Counts:
    """What becomes of the samples of some operators; names say which variant."""
    import torch

    quiet_torch()
    found = Counts()
    for info in operators():
        if f"{info.name} {info.variant_test_name}" in names:
            for dtype in types:
                torch.manual_seed(0)
                given = drawn(list(samples(info, dtype, reference=True)), most, f"{info.name} {dtype}")
                found.add(checked(info, given))
    return found


def main() -> int:
    """The command line."""
    given = options(__doc__, types=TYPES)
    try:
        every = operators()
    except ImportError as error:
        print(f"no database of torch's: {error}; pip install 'mirage_formal[torch-test]'", file=sys.stderr)
        return 2
    names = [f"{info.name} {info.variant_test_name}" for info in every if not given.only or info.name in given.only]
    found = Counts()
    tasks = [([names[i] for i in part], given.types, given.most) for part in parts(len(names), _CHUNK)]
    for _, future in in_pool(looked_at, tasks, given.jobs):
        found.add(future.result())
    for fault in sorted(found.faults):
        print(fault)
    for name in sorted({*found.compared, *found.left}):
        print(f"{name}: {found.compared[name]} compared, {found.left[name]} without a program")
    total = sum(found.compared.values())
    print(f"{total} samples of {len(found.compared)} operators compared, {len(found.faults)} differ")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
