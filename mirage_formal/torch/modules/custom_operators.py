"""Results as torch operators, which torch.compile, torch.export, autograd, vmap and torch.save support.

    operator = torch_operator(result)
    y = operator(x, w)

An operator is called ``mirage_formal::c<digest>``. The first letter is u where kernels may run that are only tested,
and t where it runs a Triton file. It has a schema, kernels for the GPU and the CPU, a rule for fake
tensors (``torch.library.opcheck`` passes all four of its tests), one for gradients and one for vmap.

Gradients are computed by torch from the program's own operators, which are recomputed: a candidate has no backward
kernels of its own. Only calls that need a gradient pay for it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch

from mirage_formal.device.launch import Optimized
from mirage_formal.device.tensors import TensorError, same_strides
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.support.errors import DTypeError, ShapeError
from mirage_formal.torch.analysis.conditions import ConditionGuard, UnmetConditionError
from mirage_formal.torch.modules.eager_execution import DTYPES, torch_program

if TYPE_CHECKING:
    from mirage_formal.run.results.result import Result

NAMESPACE: Final = "mirage_formal"
_DIGITS: Final = 24
#: Bytes of the widest load of a kernel.
_ALIGNED: Final = 16
#: Dispatch keys of a tensor whose memory holds its elements, and those that are on without any mode. Others change the
#: values that are read: tensors of subclasses and of other devices, lazily negated ones, transforms.
_PLAIN: Final = (
    *("CPU", "CUDA", "BackendSelect", "ADInplaceOrView"),
    *("AutogradCPU", "AutogradCUDA", "AutocastCPU", "AutocastCUDA"),
)
#: Outputs of a call: one tensor, or a tuple of them.
Outputs: TypeAlias = Any

_library: Final = torch.library.Library(NAMESPACE, "FRAGMENT")
_registered: Final[dict[str, TorchOperator]] = {}
_lock: Final = threading.Lock()


class TorchOperator:
    """A candidate as a torch operator; made by ``torch_operator``, once in a process for each candidate.

    It can be pickled, copied and saved inside of a module: it carries µGraphs and the path of its evidence. It runs on
    the current stream, allocates through torch and can be captured in a CUDA graph.

    Attributes:
        name: Its name in ``torch.ops.mirage_formal``.
        result: The candidate.
        read: For each output, the numbers of the inputs that it depends on. Band masks are no inputs of the operator.
    """

    def __init__(self, name: str, result: Result, program: KernelGraph) -> None:
        self.name = name
        self.result = result
        self._program = program
        types, passed = kernel_types(program), [item for item in program.inputs if item.band is None]
        self._inputs = [(item.name, item.tensor.shape, DTYPES[item.tensor.dtype]) for item in passed]
        self._strides = [item.strides for item in passed]
        self._outputs = [(types[number].shape, DTYPES[types[number].dtype]) for number in program.outputs]
        self._single = len(self._outputs) == 1
        self._optimized: Optimized = result.optimized
        # A Triton file takes what it is given; kernels of CUDA C++ refuse what they were not made for.
        self._exact = result.backend == "cuda"
        self._eager: Callable[..., tuple[torch.Tensor, ...]] | None = None
        self._guard: ConditionGuard | None = None
        self.read = _inputs_of(program)
        self._define()

    @property
    def overload(self) -> Any:
        """The operator as registered with torch."""
        return getattr(torch.ops.mirage_formal, self.name).default

    def __call__(self, *tensors: torch.Tensor) -> Outputs:
        """Compute the outputs.

        Args:
            tensors: The inputs in order, on one device. One with other strides than the program declares is copied.

        Returns:
            The output, or a tuple of them.

        Raises:
            ShapeError, DTypeError: An input does not fit; names it, and what was expected.
            TensorError: They do not lie on one device.
        """
        found: Outputs = self._call(*tensors)
        return found

    def eager(self, *tensors: torch.Tensor) -> Outputs:
        """Compute the program by torch's own operators, which record gradients."""
        if self._eager is None:
            self._eager = torch_program(self._program)
        found = self._eager(*tensors)
        return found[0] if self._single else found

    @property
    def guard(self) -> ConditionGuard:
        """Return the guard that checks the conditions of the operator's program; it is made at the first use."""
        if self._guard is None:
            self._guard = ConditionGuard(self._program)
        return self._guard

    def __reduce__(self) -> tuple[Any, ...]:
        return torch_operator, (self.result,)

    def __deepcopy__(self, memo: dict[int, Any]) -> TorchOperator:
        """Return the operator itself, because it is immutable."""
        return self

    def __repr__(self) -> str:
        return f"<{NAMESPACE}::{self.name} of {self.result.directory}>"

    # --- what torch is told

    def _define(self) -> None:
        names = [f"Tensor x{i}" for i in range(len(self._inputs))]
        made = "Tensor" if self._single else f"({', '.join('Tensor' for _ in self._outputs)})"
        _library.define(f"{self.name}({', '.join(names)}) -> {made}", tags=(torch.Tag.needs_fixed_stride_order,))
        self._call = self.overload
        for key in ("CPU", "CUDA"):
            _library.impl(self.name, self._run, key)
        _library.impl(self.name, self._differentiable, "Autograd")
        qualified = f"{NAMESPACE}::{self.name}"
        torch.library.register_fake(qualified, self._fake, lib=_library)
        torch.library.register_vmap(qualified, self._batched, lib=_library)

    def _run(self, *tensors: torch.Tensor) -> Outputs:
        """Compute the outputs by the candidate's launches on a GPU, and by the reference semantics on the CPU."""
        found: Outputs
        if self._exact:
            try:
                found = self._optimized.on_torch(tensors) if tensors[0].is_cuda else self._optimized(*tensors)
                return found
            except (DTypeError, ShapeError, TensorError):  # before anything is launched: one is laid out, or refused
                pass
        for x, (_, shape, dtype), strides in zip(tensors, self._inputs, self._strides, strict=True):
            if (
                x.stride() != strides
                or x.shape != shape
                or x.dtype is not dtype
                or (x.is_cuda and x.data_ptr() % _ALIGNED)
            ):
                self._checked(tensors)
                tensors = tuple(_lay_out(x, strides) for x, strides in zip(tensors, self._strides, strict=True))
                break
        if not torch.is_grad_enabled() or not any([x.requires_grad for x in tensors]):
            found = self._optimized(*tensors)
            return found
        with torch.no_grad():  # tensors that need a gradient are handled before
            found = self._optimized(*tensors)
        return found

    def _fake(self, *tensors: torch.Tensor) -> Outputs:
        self._checked(tensors)
        made = tuple(tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in self._outputs)
        return made[0] if self._single else made

    def _checked(self, tensors: Sequence[torch.Tensor]) -> None:
        for value, (name, shape, dtype) in zip(tensors, self._inputs, strict=True):
            if value.shape != shape:
                what = f"expected shape {list(shape)}, got {list(value.shape)}"
                raise ShapeError(what, where=name, hint="kernels are made for the declared shapes only")
            if value.dtype is not dtype:
                what = f"expected elements of {dtype}, got {value.dtype}"
                raise DTypeError(what, where=name, hint="convert the tensor yourself; nothing is converted silently")

    def _differentiable(self, *tensors: torch.Tensor) -> Outputs:
        found: Outputs
        if torch.is_grad_enabled() and any([x.requires_grad for x in tensors]):
            found = _RecomputedGradient.apply(self, *tensors)
            return found
        if _has_plain_dispatch(
            tensors
        ):  # the dispatcher would call the kernel next, and take as long as the way to here
            return self._run(*tensors)
        with torch._C._AutoDispatchBelowAutograd():
            found = self._call(*tensors)
            return found

    def _batched(
        self, info: Any, dims: tuple[int | None, ...], *tensors: torch.Tensor
    ) -> tuple[Outputs, int | tuple[int, ...]]:
        """Compute a vmap by one call for each element of the batch, because kernels have a fixed shape."""
        rows = []
        for i in range(info.batch_size):
            given = [x if dim is None else x.select(dim, i) for x, dim in zip(tensors, dims, strict=True)]
            found = self._call(*given)
            rows.append((found,) if self._single else found)
        made = tuple(torch.stack(column) for column in zip(*rows, strict=True))
        return (made[0], 0) if self._single else (made, tuple(0 for _ in made))


class _RecomputedGradient(torch.autograd.Function):  # type: ignore[misc]  # torch has no types where it is not installed
    """Autograd function: the candidate in forward; in backward, gradients of the program's recomputed operators."""

    @staticmethod
    def forward(context: Any, operator: TorchOperator, *tensors: torch.Tensor) -> Outputs:
        context.operator = operator
        context.save_for_backward(*tensors)
        with torch._C._AutoDispatchBelowAutograd():
            found: Outputs = operator._call(*tensors)
        outputs, needed = (found,) if isinstance(found, torch.Tensor) else found, context.needs_input_grad[1:]
        alone = [y for y, read in zip(outputs, operator.read, strict=True) if not any(needed[i] for i in read)]
        context.mark_non_differentiable(*alone)
        return found

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        needed, again = context.needs_input_grad[1:], torch.is_grad_enabled()
        with torch.enable_grad():
            # Views, so that a gradient of this gradient goes on to where the inputs come from.
            given = [x.view_as(x) if need else x for x, need in zip(context.saved_tensors, needed, strict=True)]
            found = context.operator.eager(*given)
        outputs = (found,) if isinstance(found, torch.Tensor) else found
        wanted = [x for x, need in zip(given, needed, strict=True) if need]
        # An output may depend on no input that needs a gradient, such as stored batch statistics.
        pairs = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None and y.requires_grad]
        if not pairs:
            return (None,) * (1 + len(needed))
        found_gradients = iter(
            torch.autograd.grad(
                [y for y, _ in pairs], wanted, [g for _, g in pairs], create_graph=again, allow_unused=True
            )
        )
        return (None, *(next(found_gradients) if need else None for need in needed))


def _inputs_of(program: KernelGraph) -> list[frozenset[int]]:
    """Return, for each output of a program, the numbers of the inputs that it depends on, of those that are passed."""
    numbers = count()
    found = [frozenset((next(numbers),)) if item.band is None else frozenset() for item in program.inputs]
    for op in program.ops:
        found += [frozenset().union(*(found[n] for n in op.operands))] * op.results
    return [found[number] for number in program.outputs]


def _dispatch_bits(names: Sequence[str]) -> int:
    """Return dispatch keys as the bits of an integer."""
    found = 0
    for name in names:
        found |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return found


# Torch asks inspect for the module of the frame that registers a rule for fake tensors. Unless inspect knows the file,
# it looks up the paths of all loaded modules.
getattr(inspect, "modulesbyfile", {}).setdefault(__file__, __name__)
_OTHER_BITS: Final = ~_dispatch_bits(_PLAIN)


def _has_plain_dispatch(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether no dispatch key below autograd would handle these tensors before a kernel."""
    keys = torch._C._dispatch_tls_local_include_set().raw_repr()
    for x in tensors:
        keys |= torch._C._dispatch_keys(x).raw_repr()
    return not keys & _OTHER_BITS


def torch_operator(result: Result) -> TorchOperator:
    """Return a candidate as a torch operator.

    Args:
        result: The candidate.

    Returns:
        The operator; the same for the same candidate of the same program with the same back end and the same kernels
        that may run.
    """
    program = result.optimized.program
    kind = "t" if result.backend == "triton" else "u" if result.accepts_tested else "c"
    name = f"{kind}{digest(program)[: _DIGITS // 2]}{result.digest[: _DIGITS // 2]}"
    with _lock:
        if name not in _registered:
            _registered[name] = TorchOperator(name, result, program)
        return _registered[name]


def operator_of(name: str) -> TorchOperator:
    """Return the operator of a name in ``torch.ops.mirage_formal`` that was made in this process."""
    return _registered[name]


def distinct_elements(tensor: Any, strides: Sequence[int]) -> Any:
    """Return the view of a tensor without repeated elements: the first index along dims of stride 0."""
    for dim, (extent, stride) in enumerate(zip(tensor.shape, strides, strict=True)):
        if extent > 1 and not stride:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _lay_out(value: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor with these strides at an aligned address: itself, or a copy."""
    same = value.stride() == strides or same_strides(tuple(value.shape), value.stride(), strides)
    if same and not (value.is_cuda and value.data_ptr() % _ALIGNED):
        return value
    made = torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)
    # Where strides are 0 the program reads one element for many, so all of them are the same in what is given.
    distinct_elements(made, strides).copy_(distinct_elements(value, strides))
    return made


def expect_conditions(name: str, *tensors: Any) -> None:
    """Raise UnmetConditionError unless the conditions of a region hold.

    Args:
        name: The region's operator.
        tensors: The inputs of its program that callers pass.
    """
    if tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
        raise UnmetConditionError("a call that is captured, whose conditions cannot be looked at")
    if found := operator_of(name).guard.unmet(tensors):
        raise UnmetConditionError(found)


torch.fx.node.has_side_effect(expect_conditions)


__all__ = ["NAMESPACE", "TorchOperator", "distinct_elements", "expect_conditions", "operator_of", "torch_operator"]
