"""Torch operators for parts with dynamic lengths; each call runs the kernels of its bucket."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch
from torch.fx import Graph

from mirage_formal.torch.dynamic_shapes.dynamic_extents import Buckets, DynamicExtent, Extent
from mirage_formal.torch.dynamic_shapes.graph_partitioning import BucketPart, InputForm
from mirage_formal.torch.modules.custom_operators import NAMESPACE, TorchOperator, _library, _RecomputedGradient
from mirage_formal.torch.modules.module_report import FallbackWarning

_registered: Final[dict[str, BucketOperator]] = {}
_lock: Final = threading.RLock()
_ones: Final[dict[tuple[int, str], Any]] = {}


@dataclass(eq=False)
class FunctionText:
    """Source text of a function of tensors, which can be pickled.

    Attributes:
        source: Source text.
        names: Values of the global names in it; modules by their names.
    """

    source: str
    names: Mapping[str, Any]
    _made: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, graph: Graph) -> FunctionText:
        """Return the function of a torch graph as text."""
        code = graph.python_code("self")
        text = code.src.replace("def forward(self, ", "def forward(", 1).replace(
            "def forward(self)", "def forward()", 1
        )
        meant = {name: f"={v.__name__}" if isinstance(v, ModuleType) else v for name, v in code.globals.items()}
        return cls(text, meant)

    def __call__(self, *given: Any) -> Any:
        """Call the function that the source defines and return its result; the source is compiled at the first call."""
        if self._made is None:
            names = {
                name: import_module(value[1:]) if isinstance(value, str) and value.startswith("=") else value
                for name, value in self.names.items()
            }
            exec(self.source, names)
            self._made = names["forward"]
        return self._made(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return FunctionText, (self.source, self.names)


@dataclass(frozen=True, eq=False)
class BucketEntry:
    """Function and operators that compute the calls of one bucket.

    Attributes:
        function: The bucket's graph with operators made of candidates.
        feed: Its arguments: the number of an input, ("kept", number of a length), ("part", number of a length, element
            type), or a tensor.
        operators: The operators.
    """

    function: FunctionText
    feed: tuple[Any, ...]
    operators: tuple[TorchOperator, ...]


@dataclass(frozen=True, eq=False)
class CallingConvention:
    """Calling convention of a part.

    Attributes:
        forms: Forms of its inputs.
        results: The extents of its outputs.
        lengths: Its lengths, which are passed after the inputs, in this order.
        buckets: Buckets of the lengths.
        function: The part computed by torch at any length, from the inputs and the numbers.
        counted: Number of numbers that are passed after the lengths.
    """

    forms: tuple[InputForm, ...]
    results: tuple[tuple[Extent, ...], ...]
    lengths: tuple[DynamicExtent, ...]
    buckets: tuple[Buckets, ...]
    function: FunctionText
    counted: int


#: Function that makes a bucket's entry from its largest extents; None where torch is expected to be as fast.
Prepare = Callable[[tuple[int, ...]], "BucketEntry | None"]


class BucketOperator:
    """A part as a torch operator with the arguments: its inputs, their lengths, and numbers that depend on these.

    A length outside of all buckets, and a bucket without a candidate, is computed by torch at that length, the former
    with a warning at the first such call.

    Attributes:
        name: Its name in ``torch.ops.mirage_formal``.
        call: Calling convention of the part.
        entries: Functions of the buckets that are ready, by their largest extents.
    """

    def __init__(
        self,
        name: str,
        call: CallingConvention,
        entries: dict[tuple[int, ...], BucketEntry | None],
        prepare: Prepare | None,
    ):
        self.name = name
        self.call = call
        self.entries = entries
        self._prepare = prepare
        self._said = False
        self._single = len(call.results) == 1
        tensors = [f"Tensor x{i}" for i in range(len(call.forms))]
        numbers = [f"SymInt n{i}" for i in range(len(call.lengths) + call.counted)]
        made = "Tensor" if self._single else f"({', '.join('Tensor' for _ in call.results)})"
        _library.define(
            f"{name}({', '.join((*tensors, *numbers))}) -> {made}", tags=(torch.Tag.needs_fixed_stride_order,)
        )
        for key in ("CPU", "CUDA"):
            _library.impl(name, self._run, key)
        _library.impl(name, self._differentiable, "Autograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", self._torch, lib=_library)

    @property
    def overload(self) -> Any:
        """The operator as registered with torch."""
        return getattr(torch.ops.mirage_formal, self.name).default

    def __reduce__(self) -> tuple[Any, ...]:
        return bucket_operator, (self.name, self.call, self.entries)

    def __deepcopy__(self, memo: dict[int, Any]) -> BucketOperator:
        """Return the operator itself, because copies share the searched buckets."""
        return self

    def ready(self, lengths: Sequence[int]) -> bool:
        """Return whether calls of these lengths run candidates; the bucket is prepared if it was not."""
        uppers = self._uppers(lengths)
        return uppers is not None and self._entry(uppers) is not None

    def _uppers(self, lengths: Sequence[int]) -> tuple[int, ...] | None:
        found = [where.upper(n) for n, where in zip(lengths, self.call.buckets, strict=True)]
        return None if None in found else tuple(n for n in found if n is not None)

    def _entry(self, uppers: tuple[int, ...]) -> BucketEntry | None:
        if uppers not in self.entries:
            with _lock:
                if uppers not in self.entries:
                    self.entries[uppers] = None if self._prepare is None else self._prepare(uppers)
        return self.entries[uppers]

    def _split(self, given: Sequence[Any]) -> tuple[Sequence[Any], Sequence[int], Sequence[Any]]:
        count, lengths = len(self.call.forms), len(self.call.lengths)
        return given[:count], given[count : count + lengths], given[count + lengths :]

    def _run(self, *given: Any) -> Any:
        tensors, lengths, _ = self._split(given)
        uppers = self._uppers(lengths)
        if uppers is None:
            self._say(lengths)
            return self._torch(*given)
        at = dict(zip(self.call.lengths, lengths, strict=True))
        entry = self._entry(uppers)
        if entry is None or not self._have_extents(tensors, at):
            return self._torch(*given)
        tops = dict(zip(self.call.lengths, uppers, strict=True))
        padded = [continue_padding(x, form, at, tops) for x, form in zip(tensors, self.call.forms, strict=True)]
        with torch.no_grad():
            found = entry.function(*(_feed_arguments(item, padded, lengths, uppers) for item in entry.feed))
        results = [_cut(x, extents, at) for x, extents in zip(found, self.call.results, strict=True)]
        return (
            _copy_shared_results(tensors, results)[0] if self._single else tuple(_copy_shared_results(tensors, results))
        )

    def _have_extents(self, tensors: Sequence[Any], at: Mapping[DynamicExtent, int]) -> bool:
        """Return whether inputs have the extents of the lengths; if not, torch raises the error."""
        for x, form in zip(tensors, self.call.forms, strict=True):
            if tuple(x.shape) != tuple(at[n] if isinstance(n, DynamicExtent) else n for n in form.extents):
                return False
            if form.strides is not None and not all(form.strides) and not _has_strides(x, form.strides):
                return False
        return True

    def _torch(self, *given: Any) -> Any:
        """Compute the part by torch, at the call's own lengths."""
        tensors, _, numbers = self._split(given)
        results = [x.contiguous() for x in self.call.function(*tensors, *numbers)]
        return results[0] if self._single else tuple(results)

    def _say(self, lengths: Sequence[int]) -> None:
        if not self._said:
            self._said = True
            where = "; ".join(f"{n} in {item}" for n, item in zip(lengths, self.call.buckets, strict=True))
            text = f"computed by torch, as is every such call: expected lengths in the buckets, got {where}"
            warnings.warn(text, FallbackWarning, stacklevel=2)

    def _differentiable(self, *given: Any) -> Any:
        tensors, lengths, numbers = self._split(given)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return _RecomputedGradient.apply(_BoundOperator(self, (*lengths, *numbers)), *tensors)
        with torch._C._AutoDispatchBelowAutograd():
            return self.overload(*given)


@dataclass(frozen=True, slots=True)
class _BoundOperator:
    """A bucket operator with its numbers bound, as the gradient rule receives it."""

    operator: BucketOperator
    numbers: tuple[Any, ...]

    @property
    def read(self) -> list[frozenset[int]]:
        """Return, for each result, the numbers of the tensors that it may depend on: all of them."""
        return [frozenset(range(len(self.operator.call.forms)))] * len(self.operator.call.results)

    def _call(self, *tensors: Any) -> Any:
        return self.operator.overload(*tensors, *self.numbers)

    def eager(self, *tensors: Any) -> Any:
        """Compute the part by torch's own operators, which record gradients."""
        return self.operator._torch(*tensors, *self.numbers)


def bucket_operator(
    name: str,
    call: CallingConvention,
    entries: dict[tuple[int, ...], BucketEntry | None],
    prepare: Prepare | None = None,
) -> BucketOperator:
    """Return the operator of a name; register it if it does not exist."""
    with _lock:
        if name not in _registered:
            _registered[name] = BucketOperator(name, call, entries, prepare)
        return _registered[name]


def call_of(part: BucketPart) -> CallingConvention:
    """Return the calling convention of a part."""
    function = FunctionText.of(part.function())
    return CallingConvention(part.forms, part.results, part.lengths, part.buckets, function, len(part.numbers))


def name_of(part: BucketPart, asked: Mapping[str, Any]) -> str:
    """Return a name derived by sha256 from a part, its buckets and the search options."""
    text = f"{part.text()}\n{sorted((name, str(value)) for name, value in asked.items())}"
    return f"b{sha256(text.encode()).hexdigest()[:24]}"


def continue_padding(
    tensor: Any, form: InputForm, at: Mapping[DynamicExtent, int], uppers: Mapping[DynamicExtent, int]
) -> Any:
    """Pad a tensor to a bucket's largest extents with copies of its last positions.

    Args:
        tensor: The tensor.
        form: Its form.
        at: The lengths.
        uppers: The largest value of each length in the bucket.

    Returns:
        Itself if no padding is needed and its strides are those of the form, and a copy otherwise.
    """
    shape, strides = form.at(uppers)
    if tuple(tensor.shape) == shape and _has_strides(tensor, strides):
        return tensor
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
    filled = made
    for dim, extent in enumerate(tensor.shape):
        filled = filled.narrow(dim, 0, extent)
    filled.copy_(tensor)
    # Dims one after another, so that each reads the padding of the previous ones.
    for dim, extent in enumerate(form.extents):
        if isinstance(extent, DynamicExtent) and at[extent] < uppers[extent]:
            whole = made
            for later in range(dim + 1, len(shape)):
                whole = whole.narrow(later, 0, tensor.shape[later])
            length, upper = at[extent], uppers[extent]
            whole.narrow(dim, length, upper - length).copy_(whole.narrow(dim, length - 1, 1))
    return made


def _has_strides(tensor: Any, strides: Sequence[int]) -> bool:
    return all(n == 1 or a == b for n, a, b in zip(tensor.shape, tensor.stride(), strides, strict=True))


def _cut(tensor: Any, extents: Sequence[Extent], at: Mapping[DynamicExtent, int]) -> Any:
    for dim, extent in enumerate(extents):
        if isinstance(extent, DynamicExtent):
            tensor = tensor.narrow(dim, 0, at[extent])
    return tensor.contiguous()


def _copy_shared_results(tensors: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """Return the results, copied where they share memory with an input or another result, as torch requires."""
    taken = {x.untyped_storage().data_ptr() for x in tensors}
    found = []
    for result in results:
        place = result.untyped_storage().data_ptr()
        found.append(result.clone() if place in taken else result)
        taken.add(place)
    return found


def _feed_arguments(item: Any, padded: Sequence[Any], lengths: Sequence[int], uppers: Sequence[int]) -> Any:
    if isinstance(item, int):
        return padded[item]
    if not isinstance(item, tuple):
        return item
    length, upper, device = lengths[item[1]], uppers[item[1]], padded[0].device
    if item[0] == "part":
        return torch.full((1,), 1 / length, dtype=item[2], device=device)
    return length_mask(length, upper, device)


def length_mask(length: int, upper: int, device: Any) -> Any:
    """Return a mask with ones below a length and zeros behind it: a slice of a tensor cached for each bucket."""
    key = upper, str(device)
    if key not in _ones:
        _ones[key] = torch.arange(2 * upper, device=device) < upper
    return _ones[key].narrow(0, upper - length, upper)


__all__ = [
    "BucketEntry",
    "BucketOperator",
    "CallingConvention",
    "FunctionText",
    "bucket_operator",
    "call_of",
    "continue_padding",
    "length_mask",
    "name_of",
]
