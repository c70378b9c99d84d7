"""PyTorch's own samples of its operators, imported and held to the contract; see benchmarks/opinfo_torch.py."""

from __future__ import annotations

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from mirage_formal.support.errors import MirageError
from mirage_formal.torch import from_torch
from mirage_formal.torch.comparison.import_comparison import arguments_of, compare_with_torch
from mirage_formal.torch.op_table import ROWS

TYPES: Final = ("float16", "bfloat16", "float32")
#: Elements of all tensors of a sample; some are large to take long on a GPU.
_MOST: Final = 1 << 18


@dataclass
class Counts:
    """What became of samples.

    Attributes:
        compared: How many were compared, by the operator's name.
        left: How many no region has, as those of integers, or torch.export has no graph of.
        faults: How those that differ do, with the sample.
    """

    compared: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add(self, other: Counts) -> None:
        """Count others as well."""
        self.compared += other.compared
        self.left += other.left
        self.faults += other.faults


def operators() -> list[Any]:
    """The entries of torch's database whose operators the table imports, in order.

    Raises:
        ImportError: torch.testing's database, or the package expecttest that it needs, is not there.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    wanted = {row.name.split(".")[1] for row in ROWS if not row.refused}
    return [info for info in op_db if info.aten_name in wanted or info.name.split(".")[-1] in wanted]


def samples(info: Any, dtype: str, *, reference: bool) -> Iterator[Any]:
    """The samples of an operator in one element type; ``reference``, those of its reference tests as well."""
    kind = getattr(torch, dtype)
    if kind not in info.supported_dtypes("cpu"):
        return
    yield from info.sample_inputs("cpu", kind, requires_grad=False)
    if reference and info.reference_inputs_func is not None:
        yield from info.reference_inputs("cpu", kind, requires_grad=False)


def checked(info: Any, given: Sequence[Any]) -> Counts:
    """What becomes of samples of an operator."""
    found = Counts()
    name = info.name + (f".{info.variant_test_name}" if info.variant_test_name else "")
    for sample in given:
        said = _said(info, sample)
        if said is None:
            found.left[name] += 1
            continue
        found.compared[name] += 1
        if said:
            found.faults.append(f"{name}: {_text(sample)}: {said}")
    return found


def _said(info: Any, sample: Any) -> str | None:
    """How the import of a sample differs; empty if it does not, None if there is nothing to compare."""
    leaves, spec = torch.utils._pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
    tensors = [leaves[i] for i in places]
    if not tensors or sum(x.numel() for x in tensors) > _MOST or any(x.layout is not torch.strided for x in tensors):
        return None
    call = _call(info.op, leaves, places, spec)
    try:
        imported = from_torch(call, tuple(tensors))
    except MirageError as error:
        return None if "torch.export has no graph" in str(error) else f"refused: {error}"
    except Exception as error:  # whatever is wrong with a rule
        return f"crash of the import: {type(error).__name__}: {error}"
    if not imported.regions:
        return None
    try:
        comparison = compare_with_torch(imported, arguments_of(imported, tensors), ())
    except Exception as error:  # whatever is wrong with a program
        return f"crash: {type(error).__name__}: {error}"
    if not comparison.sets:
        return None
    return "; ".join(dict.fromkeys(str(fault) for fault in comparison.faults.values()))


def _call(operator: Callable[..., Any], leaves: Sequence[Any], places: Sequence[int], spec: Any) -> Callable[..., Any]:
    """A function of the tensors of a sample that calls its operator; of several results, all that are tensors."""

    def call(*tensors: Any) -> Any:
        given = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        first, args, kwargs = torch.utils._pytree.tree_unflatten(given, spec)
        found = operator(first, *args, **kwargs)
        return tuple(x for x in torch.utils._pytree.tree_leaves(found) if isinstance(x, torch.Tensor))

    return call


def _text(sample: Any) -> str:
    """A sample in few words."""

    def said(x: Any) -> Any:
        return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" if isinstance(x, torch.Tensor) else x

    first, args, kwargs = torch.utils._pytree.tree_map(said, (sample.input, sample.args, sample.kwargs))
    return f"input {first}" + (f", args {args}" if args else "") + (f", {kwargs}" if kwargs else "")


def drawn(given: Sequence[Any], most: int | None, seed: str) -> list[Any]:
    """All samples, or so many of them, which ones depends on a text only."""
    every = list(given)
    if most is None or len(every) <= most:
        return every
    return random.Random(seed).sample(every, most)
