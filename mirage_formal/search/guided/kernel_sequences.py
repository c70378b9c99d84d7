"""Enumeration of kernel-level operator sequences: predefined operators and graph-defined kernels up to the output."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations, product
from typing import NewType

from msgspec import Struct

from mirage_formal.graph.ops import (
    ARITHMETIC,
    COMPARISONS,
    EXTREMES,
    NO_ATTRS,
    SPECS,
    TAKES_MASKS,
    VALUED,
    Attrs,
    OpKind,
)
from mirage_formal.search.guided.algebra.interner import Form
from mirage_formal.search.guided.algebra.operator_normal_forms import (
    binary_form,
    function_form,
    rms_norm,
    selection_form,
    shift_form,
    valued_form,
)
from mirage_formal.search.guided.algebra.part_masks import Frame, PartMask, full_mask
from mirage_formal.search.guided.algebra.part_numbering import Axis, Part, Parts, is_unsplit, part_axis, unsplit_part
from mirage_formal.search.guided.axes import OF_MASKS, TensorId
from mirage_formal.search.guided.index_renaming import Dims
from mirage_formal.search.guided.kernel_interface import KernelInterface, parts_of_axis
from mirage_formal.search.guided.kernel_solver import KernelSolver
from mirage_formal.search.guided.solved_kernel import SolvedKernel
from mirage_formal.search.guided.symbolic_tiling import KTensor


class PredefinedStep(Struct, frozen=True):
    """Predefined operator that runs as a kernel of its own."""

    kind: OpKind
    operands: tuple[TensorId, ...]
    attrs: Attrs
    outputs: tuple[KTensor, ...]


class GraphDefinedStep(Struct, frozen=True):
    """Graph-defined kernel; ``kernels`` are alternatives that compute the same outputs."""

    operands: tuple[TensorId, ...]
    kernels: tuple[SolvedKernel, ...]
    outputs: tuple[KTensor, ...]


#: A set of tensors as a bit mask: bit number ``tensor`` stands for that tensor.
TensorMask = NewType("TensorMask", int)

Step = PredefinedStep | GraphDefinedStep
Path = tuple[Step, ...]


class _State(Struct, frozen=True):
    tensors: tuple[KTensor, ...]
    unused: TensorMask
    steps_left: int
    defined_left: int
    frame: Frame
    read: frozenset[TensorId]
    path: Path


#: Up to this number of program inputs, shares divide the handovers of each first kernel; above it, the first kernels.
_FEW_INPUTS = 4


class PathFinder:
    """Enumerator of kernel-level operator sequences ("paths").

    Paths of a single kernel come first in every search: they are found at once, and a search that ends at a limit keeps
    its earlier results.

    Args:
        solver: Solves the kernels.
        part: (i, n): share number i of n shares of the first kernels' handovers. (0, 0) for single kernels only; they
            are in no share of several.
    """

    def __init__(self, solver: KernelSolver, part: tuple[int, int]) -> None:
        self._solver = solver
        self._part = part
        self._single = part[1] <= 1
        self._space = solver.space
        self._inputs = len(solver.inputs)
        self._goal = KTensor(solver.target, solver.goal)
        self._operands: dict[tuple[KTensor, ...], int] = {}

    def solve_first_kernels(self) -> None:
        """Solve the kernels that may be the first operator of a path, as ``paths`` does for every share.

        There is no share whose first kernels are fewer, unless there are many inputs (``divides_first_kernels``).
        """
        start = self._start()
        if start.defined_left and start.steps_left > 1:
            for _, rest, tensors in self._readable_operands(start):
                if not self._has_too_many_unused(rest.bit_count() + 1, start.steps_left - 1):
                    self._solver.earlier(tensors, start.frame)

    @property
    def divides_first_kernels(self) -> bool:
        """Return whether shares divide the first kernels, and not what these hand over."""
        return self._inputs > _FEW_INPUTS

    def paths(self) -> Iterator[Path]:
        """Yield all paths of a share, those of a single kernel first; those without a first kernel only in share 0."""
        start = self._start()
        if self._single and start.steps_left and start.defined_left and self._inputs <= self._space.max_block_inputs:
            yield from self._single_kernel_paths(start)
        if self._part[1]:
            yield from self._visit(start)

    def _start(self) -> _State:
        return _State(
            tensors=self._solver.inputs,
            unused=TensorMask((1 << self._inputs) - 1),
            steps_left=self._space.max_kernel_ops,
            defined_left=self._space.max_graph_defined,
            frame=self._solver.frame,
            read=frozenset(),
            path=(),
        )

    def _single_kernel_paths(self, start: _State) -> Iterator[Path]:
        """Yield the paths of one kernel that reads all inputs."""
        operands = tuple(map(TensorId, range(self._inputs)))
        for tensors in product(*(self._readings(tensor, start.frame) for tensor in start.tensors)):
            kernels = self._solver.last(tensors, start.frame)
            if kernels:
                yield (GraphDefinedStep(operands, tuple(kernels), (self._goal,)),)

    def _visit(self, state: _State) -> Iterator[Path]:
        self._solver.tally.add("states")
        self._solver.tally.check()
        last_unused = state.unused.bit_length() - 1
        if state.path and state.unused.bit_count() == 1 and state.tensors[last_unused] == self._goal:
            if self._mine(state):
                yield state.path
            return
        if state.steps_left == 0:
            return
        yield from self._predefined(state)
        if state.defined_left:
            yield from self._graph_defined(state)

    def _mine(self, state: _State) -> bool:
        """Return whether this share reports a path that ends here; paths without a first kernel belong to share 0."""
        return bool(state.read) or self._part[0] == 0

    # --- predefined operators ----------------------------------------------------------------------------------

    def _predefined(self, state: _State) -> Iterator[Path]:
        for kind, operands, attrs, form, dims in self._applications(state.tensors, state.frame):
            tensor = self._solver.device_tensor(form, dims, state.frame)
            if tensor is None:
                continue
            if tensor in state.tensors or not self._solver.keeps(tensor.form, state.frame):
                continue
            unused = TensorMask(state.unused & ~sum(1 << i for i in set(operands)) | 1 << len(state.tensors))
            if self._has_too_many_unused(unused.bit_count(), state.steps_left - 1):
                continue
            yield from self._visit(
                _State(
                    (*state.tensors, tensor),
                    unused,
                    state.steps_left - 1,
                    state.defined_left,
                    state.frame,
                    state.read,
                    (*state.path, PredefinedStep(kind, operands, attrs, (tensor,))),
                )
            )

    def _has_too_many_unused(self, unused: int, steps_left: int) -> bool:
        """Return whether this number of unused tensors cannot become one output in the steps left."""
        return unused > 1 + steps_left * (self._space.max_block_inputs - 1)

    def _applications(
        self, tensors: tuple[KTensor, ...], frame: Frame
    ) -> Iterator[tuple[OpKind, tuple[TensorId, ...], Attrs, Form, Dims]]:
        ops = self._space.kernel_ops
        for i, a in _enumerate_tensors(tensors):
            for kind in ops:
                for attrs, form, dims in self._unary(kind, a, frame):
                    yield kind, (i,), attrs, form, dims
            for j, b in _enumerate_tensors(tensors):
                for kind in ops:
                    if kind not in _PAIRS or (j > i and SPECS[kind].commutative):
                        continue
                    if i == j and kind not in (OpKind.ADD, OpKind.MATMUL):
                        continue
                    if kind in _RARE and kind not in self._solver.axes.kinds:
                        continue
                    value = self._pair(kind, a, b, frame)
                    if value is not None:
                        yield kind, (i, j), NO_ATTRS, *value
        if OpKind.SELECT in ops:
            yield from self._selections(tensors, frame)

    def _selections(
        self, tensors: tuple[KTensor, ...], frame: Frame
    ) -> Iterator[tuple[OpKind, tuple[TensorId, ...], Attrs, Form, Dims]]:
        """Yield selections by boolean masks, from a tensor and a number or from two tensors."""
        algebra = self._solver.algebra
        masks = [(i, tensor) for i, tensor in _enumerate_tensors(tensors) if algebra.is_mask(tensor.form)]
        others = [(i, tensor) for i, tensor in _enumerate_tensors(tensors) if not algebra.is_mask(tensor.form)]
        for (m, mask), number in product(masks, self._solver.axes.selections):
            for chosen in permutations(others, 1 if number is not None else 2):
                forms: list[Form] = []
                dims: Dims | None = mask.dims
                for _, x in chosen:
                    joined = None if dims is None else self._beside(dims, x, frame)
                    if joined is not None:
                        forms.append(joined[0])
                    dims = None if joined is None else joined[1]
                if dims is not None:
                    form = selection_form(algebra, mask.form, forms, number)
                    yield OpKind.SELECT, (m, *(i for i, _ in chosen)), Attrs(value=number), form, dims

    def _beside(self, dims: Dims, tensor: KTensor, frame: Frame) -> tuple[Form, Dims] | None:
        """Return an elementwise operand's form with its indices renamed to match the given dims, and the result's dims.

        None if the operand's dims do not match.
        """
        form, own = tensor.form, tensor.dims
        if len(dims) != len(own):
            return None
        if not self._solver.names.single:
            try:
                form, joined = self._solver.views(frame).joined(dims, form, own)
            except ValueError:
                return None
            own = tuple(y and x for x, y in zip(joined, own, strict=True))
        found = _broadcast_dims(dims, own)
        return None if found is None else (form, found)

    def _pair(self, kind: OpKind, a: KTensor, b: KTensor, frame: Frame) -> tuple[Form, Dims] | None:
        """Return form and dims of a predefined operator with two operands; None if it has none or takes one operand."""
        algebra = self._solver.algebra
        masks = algebra.is_mask(a.form), algebra.is_mask(b.form)
        if masks[0] is not masks[1] or (masks[0] and kind not in TAKES_MASKS):
            return None
        if kind is not OpKind.MATMUL:
            found = self._beside(a.dims, b, frame)
            value = None if found is None else binary_form(algebra, kind, a.form, found[0])
            return None if found is None or value is None else (value, found[1])
        form, dims = b.form, b.dims
        if not self._solver.names.single and len(a.dims) == len(dims):
            try:
                form, dims = self._solver.views(frame).contracted(a.dims, form, dims)
            except ValueError:
                return None
        dims2 = _product_dims(a.dims, dims)
        product = None if dims2 is None else algebra.mul(a.form, form)
        total = None if product is None else algebra.sum(_bound_mask(a.dims[-1]), product, frame)
        return None if dims2 is None or total is None else (total, dims2)

    def _unary(self, kind: OpKind, a: KTensor, frame: Frame) -> Iterator[tuple[Attrs, Form, Dims]]:
        algebra, axes = self._solver.algebra, self._solver.axes
        if algebra.is_mask(a.form) is not (kind in OF_MASKS) and kind is not OpKind.TRANSPOSE:
            return
        if kind in axes.functions:
            yield NO_ATTRS, function_form(algebra, kind, a.form), a.dims
        elif kind is OpKind.SQUARE:
            squared = algebra.mul(a.form, a.form)
            if squared is not None:
                yield NO_ATTRS, squared, a.dims
        elif kind is OpKind.TRANSPOSE:
            for perm in sorted(axes.permutations):
                if len(perm) == len(a.dims):
                    yield Attrs(perm=perm), a.form, tuple(a.dims[i] for i in perm)
        elif kind in (OpKind.SUM, OpKind.RMS_NORM):
            yield from self._along(kind, a, frame)
        else:
            for attrs, form in self._attribute_operators(kind, a.form):
                yield attrs, form, a.dims

    def _attribute_operators(self, kind: OpKind, a: Form) -> Iterator[tuple[Attrs, Form]]:
        """Yield elementwise operators of one operand whose attribute occurs in the program."""
        algebra, axes = self._solver.algebra, self._solver.axes
        if kind is OpKind.SCALE:
            for value in sorted(axes.constants):
                scaled = algebra.mul(algebra.constant(value), a)
                if scaled is not None:
                    yield Attrs(factor=value), scaled
        elif kind is OpKind.SHIFT:
            for value in sorted(axes.shifts):
                yield Attrs(shift=value), shift_form(algebra, a, value)
        elif kind is OpKind.CAST:
            for dtype in sorted(axes.casts):
                yield Attrs(dtype=dtype), function_form(algebra, kind, a)
        elif kind in VALUED:
            for value in sorted(v for k, v in axes.numbers if k is kind):
                yield Attrs(value=value), valued_form(algebra, kind, a, value)

    def _along(self, kind: OpKind, a: KTensor, frame: Frame) -> Iterator[tuple[Attrs, Form, Dims]]:
        """Yield sums and norms along each dim of a tensor."""
        algebra = self._solver.algebra
        for dim, parts in enumerate(a.dims):
            if not parts:
                continue
            if kind is OpKind.SUM:
                total = algebra.sum(_bound_mask(parts), a.form, frame)
                if total is not None:
                    yield Attrs(dim=dim), total, (*a.dims[:dim], (), *a.dims[dim + 1 :])
                continue
            for norm, eps in sorted(self._solver.axes.norms, key=str):
                normed = rms_norm(algebra, _bound_mask(parts), a.form, eps, frame) if norm is kind else None
                if normed is not None:
                    yield Attrs(dim=dim, eps=eps), normed, a.dims

    # --- graph-defined kernels ---------------------------------------------------------------------------------

    def _graph_defined(self, state: _State) -> Iterator[Path]:
        for operands, rest, tensors in self._readable_operands(state):
            yield from self._kernel(state, operands, rest, tensors)

    def _readable_operands(
        self, state: _State
    ) -> Iterator[tuple[tuple[TensorId, ...], TensorMask, tuple[KTensor, ...]]]:
        """Yield each set of tensors that one more kernel may read, what it leaves unused, and each way to read it."""
        count = len(state.tensors)
        for size in range(1, min(self._space.max_block_inputs, count) + 1):
            for operands in combinations(map(TensorId, range(count)), size):
                if self._commutes_with_last(state, operands):
                    continue  # the other order finds it
                rest = TensorMask(state.unused & ~sum(1 << i for i in operands))
                if sum(i in state.read for i in operands) > self._space.max_reread:
                    continue
                readings = [self._readings(state.tensors[i], state.frame) for i in operands]
                for tensors in product(*readings):
                    yield operands, rest, tensors

    def _commutes_with_last(self, state: _State, operands: tuple[TensorId, ...]) -> bool:
        """Return whether the previous step is a predefined operator whose result the new kernel does not read."""
        return (
            bool(state.path) and isinstance(state.path[-1], PredefinedStep) and len(state.tensors) - 1 not in operands
        )

    def _kernel(
        self, state: _State, operands: tuple[TensorId, ...], rest: TensorMask, tensors: tuple[KTensor, ...]
    ) -> Iterator[Path]:
        if not rest and state.path and self._mine(state):  # single kernels have come first
            kernels = self._solver.last(tensors, state.frame)
            if kernels:
                yield (*state.path, GraphDefinedStep(operands, tuple(kernels), (self._goal,)))
        if state.steps_left > 1:
            yield from self._earlier(state, operands, rest, tensors)

    def _readings(self, tensor: KTensor, frame: Frame) -> list[KTensor]:
        """Return the ways in which a kernel may read a tensor with an unsplit axis that an earlier kernel left split.

        If the kernel reduces that axis, it must read it in the parts that the target binds. Along an axis of the
        output, or where the axis has another copy, it may also read the axis unsplit.
        """
        names, axes = self._solver.names, self._solver.axes
        split = {a for a in names.axes if frame[a] != 1 << unsplit_part(a)}
        present = {part_axis(leaf) for leaf in tensor.leaves}
        places = [leaf for leaf in tensor.leaves if is_unsplit(leaf)]
        choices: list[list[Axis | None]] = []
        for leaf in places:
            axis = part_axis(leaf)
            also = [a for a in split if names.base(a) == names.base(axis) and (a == axis or a not in present)]
            keep = axis not in split or names.base(axis) in axes.free or names.count > names.width
            choices.append([*also, *([None] if keep or not also else [])])
        if not any(a is not None for options in choices for a in options):
            return [tensor]
        out = []
        for chosen in product(*choices):
            found = self._refined(tensor, frame, dict(zip(places, chosen, strict=True)))
            if found is not None:
                out.append(found)
        return out

    def _refined(self, tensor: KTensor, frame: Frame, chosen: dict[Part, Axis | None]) -> KTensor | None:
        """Return the tensor with the chosen unsplit axes replaced by split ones; None if two of them coincide."""
        into = {leaf: axis for leaf, axis in chosen.items() if axis is not None}
        if len(set(into.values())) < len(into):
            return None
        parts = {leaf: parts_of_axis(frame, a) for leaf, a in into.items()}
        dims = tuple(tuple(p for leaf in dim for p in parts.get(leaf, (leaf,))) for dim in tensor.dims)
        pairs = tuple((part_axis(leaf), a) for leaf, a in into.items() if part_axis(leaf) != a)
        return KTensor(self._solver.algebra.substitute(tensor.form, pairs), dims)

    def _earlier(
        self, state: _State, operands: tuple[TensorId, ...], rest: TensorMask, tensors: tuple[KTensor, ...]
    ) -> Iterator[Path]:
        if self._has_too_many_unused(rest.bit_count() + 1, state.steps_left - 1):
            return
        count = len(state.tensors)
        for handover, kernels in self._handovers(state, tensors):
            outputs = handover.outputs
            unused = TensorMask(rest | ((1 << len(outputs)) - 1) << count)
            if self._has_too_many_unused(unused.bit_count(), state.steps_left - 1):
                continue
            if self._goal in outputs:
                continue  # the last kernel of a shorter path
            if not self._readable(state, handover):
                continue
            moved = [handover.moved(self._solver.algebra, tensor) for tensor in state.tensors]
            known = [tensor for tensor in moved if tensor is not None]
            if len(known) < len(moved):
                continue
            yield from self._visit(
                _State(
                    (*known, *outputs),
                    unused,
                    state.steps_left - 1,
                    state.defined_left - 1,
                    handover.frame,
                    state.read | set(operands),
                    (*state.path, GraphDefinedStep(operands, tuple(kernels), outputs)),
                )
            )

    def _handovers(
        self, state: _State, tensors: tuple[KTensor, ...]
    ) -> list[tuple[KernelInterface, list[SolvedKernel]]]:
        """Return the interfaces that one more kernel can have; for a first kernel only those of this share.

        Sound: every handover of a first kernel belongs to exactly one share. With few inputs, solving a first kernel is
        cheap next to the search behind it; with many inputs there are enough sets of operands to divide.
        """
        share, shares = self._part
        if state.read:
            return list(self._solver.earlier(tensors, state.frame).items())
        if self.divides_first_kernels:
            if self._operands.setdefault(tensors, len(self._operands)) % shares != share:
                return []
            share, shares = 0, 1
        return list(self._solver.earlier(tensors, state.frame).items())[share::shares]

    def _readable(self, state: _State, handover: KernelInterface) -> bool:
        """Return whether later steps can still consume the tensors that a kernel leaves.

        Sound: a predefined operator works on whole dims, so without a further graph-defined kernel it consumes the
        parts of an axis only where they are all that a dim of an output holds.
        """
        if state.defined_left > 1:
            return True
        split = [a for a, made_of in enumerate(handover.frame) if made_of != self._solver.frame[a]]
        alone = {part_axis(dim[0]) for out in handover.outputs for dim in out.dims if _is_one_carried_axis(dim)}
        return alone.issuperset(split)


_PAIRS = ARITHMETIC | COMPARISONS | {OpKind.MATMUL}
#: Operators with two operands that are tried only if the program itself uses them.
_RARE = EXTREMES | COMPARISONS | {OpKind.SUB, OpKind.DIV_NO_NAN}


def _is_one_carried_axis(dim: Parts) -> bool:
    """Return whether a dim consists only of parts of one carried axis."""
    axes = {part_axis(part) for part in dim}
    return len(axes) == 1 and not any(is_unsplit(part) for part in dim)


def _bound_mask(parts: Parts) -> PartMask:
    """Return the mask that a sum over a dim's parts binds; an unsplit axis is bound wholly, even if split elsewhere."""
    out = 0
    for part in parts:
        out |= full_mask(part_axis(part)) if is_unsplit(part) else 1 << part
    return PartMask(out)


def _enumerate_tensors(tensors: tuple[KTensor, ...]) -> Iterator[tuple[TensorId, KTensor]]:
    return ((TensorId(i), tensor) for i, tensor in enumerate(tensors))


def _product_dims(a: Dims, b: Dims) -> Dims | None:
    """Return the dims of a predefined product, None if the operands do not fit."""
    if len(a) != len(b) or len(a) < 2 or a[-1] != b[-2] or a[:-2] != b[:-2] or set(a[-2]) & set(b[-1]):
        return None
    return (*a[:-1], b[-1])


def _broadcast_dims(a: Dims, b: Dims) -> Dims | None:
    """Return the dims of a predefined elementwise operator, None if the operands do not fit."""
    if any(x and y and x != y for x, y in zip(a, b, strict=True)):
        return None
    joined = tuple(x or y for x, y in zip(a, b, strict=True))
    flat = [part for dim in joined for part in dim]
    return joined if len(set(flat)) == len(flat) else None
