"""Torch tensors during an import, and their conversion from views of inputs to tensors of the program.

Inputs are declared last. Each reader records the strides by which it wants to read an input. An input that all readers
want in one way is declared with these strides. Any other is declared as most of its readers want it, with view
operators for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

from mirage_formal.api import Graph
from mirage_formal.codegen.program.bands import band_at
from mirage_formal.frontend.origins import Origin
from mirage_formal.frontend.tensor import Tensor
from mirage_formal.graph.graph import GraphDefined, Input, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import StorageLocation, is_addressable
from mirage_formal.graph.types import MAX_RANK, Band, DTensor, DType, Shape, broadcast, row_major
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.index_maps import Digit, View, merge_digits


class ImportedGraph(Graph):
    """Builder of a program from a torch graph.

    Its operators have the lines of the user's module, not of the import. Equal operators are merged. A composed RMS
    norm becomes one operator, because searches find better kernels for it.

    Sound: ``rms_norm`` is by definition x / sqrt(mean of x^2 + eps), times the weight.
    """

    def __init__(self) -> None:
        super().__init__()
        self.line: Origin | None = None
        self.stored: set[int] = set()  # numbers of the tensors that torch stores: results of its operators
        self._known: dict[Op, tuple[Tensor, ...]] = {}
        self._makers: dict[int, Op] = {}

    def _append(
        self, op: Op | GraphDefined, operands: tuple[Tensor, ...], results: tuple[DTensor, ...], label: str
    ) -> tuple[Tensor, ...]:
        if not isinstance(op, Op):
            return super()._append(op, operands, results, label)
        if (norm := self._recognised(op)) is not None:
            every = {tensor.number: tensor for tensor in (*self.inputs, *(t for s in self._steps for t in s.results))}
            op, operands = norm, tuple(every[number] for number in norm.operands)
        if op not in self._known:
            self._known[op] = super()._append(op, operands, results, label)
            self._steps[-1] = replace(self._steps[-1], origin=self.line)
            self._makers[self._known[op][0].number] = op
        return self._known[op]

    def stored_results(self) -> frozenset[int]:
        """Return the tensors of the frozen program that torch stores; others are inside of one of its operators."""
        every = [*self.inputs, *(tensor for step in self._kept() for tensor in step.results)]
        return frozenset(n for n, tensor in enumerate(every) if tensor.number in self.stored)

    def _recognised(self, op: Op) -> Op | None:
        """Return the RMS norm that a product computes, or None.

        The product is x times the reciprocal of its root mean square, or a weight times such a product.
        """
        if op.kind is not OpKind.MUL:
            return None
        for first, second in (op.operands, op.operands[::-1]):
            made = self._makers.get(second)
            if made is not None and made.kind is OpKind.RMS_NORM and len(made.operands) == 1:
                return Op(OpKind.RMS_NORM, (*made.operands, first), made.attrs) if self._fits(first, second) else None
            mean, eps = self._root_mean(second, (OpKind.RECIPROCAL, OpKind.SQRT, OpKind.SHIFT, OpKind.MEAN))
            if mean is not None and self._is_square(mean.operands[0], first):
                return Op(OpKind.RMS_NORM, (first,), Attrs(dim=mean.attrs.dim, eps=eps))
        return None

    def _is_square(self, square: int, tensor: int) -> bool:
        """Return whether ``square`` squares ``tensor``, or both equally reshape a square and its operand."""
        made, other = self._makers.get(square), self._makers.get(tensor)
        if made is not None and made.kind is OpKind.RESHAPE and other is not None and other.kind is OpKind.RESHAPE:
            same = made.attrs == other.attrs
            return same and self._makers.get(made.operands[0]) == Op(OpKind.SQUARE, other.operands)
        return made == Op(OpKind.SQUARE, (tensor,))

    def _root_mean(self, tensor: int, kinds: Sequence[OpKind]) -> tuple[Op | None, Fraction | None]:
        """Return the mean at the end of a chain of operators, and the added epsilon; a sum with 0 may be missing."""
        eps: Fraction | None = None
        for kind in kinds:
            made = self._makers.get(tensor)
            if made is None:
                return None, None
            if kind is OpKind.SHIFT and made.kind is not kind:
                continue
            if made.kind is not kind:
                return None, None
            if kind is OpKind.MEAN:
                return made, eps
            eps, tensor = made.attrs.shift or eps, made.operands[0]
        return None, None

    def _fits(self, weight: int, norm: int) -> bool:
        """Return whether a weight broadcasts to a norm's operand."""
        shapes = {t.number: t.shape for t in self.inputs} | {t.number: t.shape for s in self._steps for t in s.results}
        return broadcast(shapes[weight], shapes[norm]) == shapes[norm]


@dataclass(frozen=True, slots=True)
class InputLayout:
    """Layout of a program's input: shape, strides and offset of its view of the given tensor, in elements."""

    shape: Shape
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class ReceivedTensor:
    """A tensor that the program receives.

    Attributes:
        name: The name of its node in the torch graph.
        shape: Its extents.
        strides: Its strides in memory.
        dtype: Its element type.
        band: Its band, if it is a band mask of the import's own.
    """

    name: str
    shape: Shape
    strides: tuple[int, ...]
    dtype: DType
    band: Band | None = None

    @property
    def layout(self) -> InputLayout:
        """Layout in memory order: dims of more than one element by descending stride; repeated elements once."""
        pairs = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n > 1 and s]
        pairs = sorted(pairs, key=lambda pair: -pair[1]) or [(1, 1)]
        return InputLayout(tuple(n for n, _ in pairs), tuple(s for _, s in pairs), 0)


@dataclass(frozen=True, slots=True)
class UniformValue:
    """A number, which all elements of a tensor have.

    Attributes:
        number: The number, rounded to the element type.
        dtype: The element type.
    """

    number: Fraction
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class ImportedValue:
    """A torch tensor during the import: a view of a tensor or a constant.

    Attributes:
        base: The tensor that is viewed, or the number of all elements.
        view: Index map into the base.
        keep: Mask of the elements that have the value; the others are minus infinity. None: all elements.
    """

    base: ReceivedTensor | Tensor | UniformValue
    view: View
    keep: ImportedValue | None = None

    @property
    def shape(self) -> Shape:
        """Return the extents of the torch tensor."""
        return self.view.shape

    @property
    def dtype(self) -> DType:
        """Return the element type in the program."""
        return self.base.dtype

    @property
    def number(self) -> Fraction | None:
        """Return the number of all elements of a constant; None for other values."""
        return self.base.number if isinstance(self.base, UniformValue) else None

    def same(self, other: ImportedValue) -> bool:
        """Return whether two values have the same elements of one tensor."""
        mine, theirs = (v.base.name if isinstance(v.base, ReceivedTensor) else v.base for v in (self, other))
        return mine == theirs and self.view == other.view and self.keep is None and other.keep is None


def unsupported_error(what: str, hint: str = "leave it to torch, or write it another way") -> UnsupportedError:
    """Return the error that a rule raises when it cannot write an operator."""
    return UnsupportedError(what, hint=hint)


@dataclass(slots=True)
class ImportedProgram:
    """A program under construction during an import.

    Attributes:
        graph: Its operators so far.
        layouts: Layouts of the inputs; None in a first pass, which writes the program once to determine them.
        wishes: For each input, the layouts in which it is read; None for a read that no strides express.
        inputs: The declared inputs, by name of their node.
        names: Names of inputs, by name of their node.
        sources: The inputs that were read, by name of their node.
        drafts: Placeholders of inputs in the first pass.
        stored: Function that makes a tensor of one element of a number.
    """

    layouts: dict[str, InputLayout] | None = None
    names: dict[str, str] = field(default_factory=dict)
    graph: ImportedGraph = field(default_factory=ImportedGraph)
    wishes: dict[str, Counter[InputLayout | None]] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    sources: dict[str, ReceivedTensor] = field(default_factory=dict)
    drafts: dict[object, Tensor] = field(default_factory=dict)
    stored: Callable[[UniformValue], ReceivedTensor] | None = None

    def chosen(self) -> dict[str, InputLayout]:
        """Return the layout in which to declare each input, from the layouts in which it was read."""
        found: dict[str, InputLayout] = {}
        for name, wishes in self.wishes.items():
            whole = self.sources[name].layout
            if len(wishes) == 1 and None not in wishes:
                (only,) = wishes
                found[name] = only if only is not None else whole
                continue
            counted = prod(whole.shape)
            full = [w for w, _ in wishes.most_common() if w and prod(w.shape) == counted and not w.offset]
            fits = _is_gapless(whole)
            found[name] = full[0] if full and fits else whole
        return found

    def lay(self, value: ImportedValue, groups: Sequence[Sequence[Digit]], *, real: bool = False) -> Tensor:
        """Materialize a value as a tensor of the program, with one dim for each group of the value's digits.

        Args:
            value: The value.
            groups: Digits of its view, refined or not, in any order; a digit of stride 0 is repeated. Together they
                index all elements of the result.
            real: Whether dims that are only repeated have their extent; otherwise it is 1.

        Returns:
            A tensor of the program.

        Raises:
            MirageError: No operators give these elements in this order.
        """
        if value.keep is not None:
            raise unsupported_error("expected finite numbers, got minus infinity, which only a softmax may read")
        extents = [prod(n for n, _ in group) for group in groups]
        base = value.base
        if isinstance(base, UniformValue):
            assert self.stored is not None
            base = self.stored(base)
        laid = (
            self._source(base, value.view.offset, groups)
            if isinstance(base, ReceivedTensor)
            else self._tensor(base, value.view.offset, groups)
        )
        mixed = [any(s == 0 for _, s in group) and any(s for _, s in group) for group in groups]
        wanted = [any(s == 0 for _, s in group) and (real or mix) for group, mix in zip(groups, mixed, strict=True)]
        return self._repeated(laid, groups, extents) if any(wanted) else laid

    def _repeated(self, laid: Tensor, groups: Sequence[Sequence[Digit]], extents: Sequence[int]) -> Tensor:
        digits = [digit for group in groups for digit in group if digit[0] > 1]
        apart = tuple(n if s else 1 for n, s in digits)
        found = self.graph.reshape(laid, apart)
        for axis, (extent, stride) in enumerate(digits):
            if stride == 0:
                found = self.graph.repeat(found, axis, extent)
        return self._shaped(found, tuple(extents))

    def _shaped(self, tensor: Tensor, shape: Shape) -> Tensor:
        wanted = shape or (1,)
        return tensor if tensor.shape == wanted else self.graph.reshape(tensor, wanted)

    def _source(self, source: ReceivedTensor, offset: int, groups: Sequence[Sequence[Digit]]) -> Tensor:
        moved = [merge_digits([digit for digit in group if digit[1]]) for group in groups]
        view = View(tuple(moved), offset)
        wish = None
        if view.plain and len(groups) <= MAX_RANK:
            shape = tuple(view.shape) or (1,)
            strides = view.strides or (1,)
            wish = InputLayout(shape, strides, offset) if is_addressable(shape, strides) else None
        self.sources[source.name] = source
        self.wishes.setdefault(source.name, Counter())[wish] += 1
        if self.layouts is None:
            key = (source.name, offset, tuple(moved))
            if key not in self.drafts:
                shape = view.shape or (1,)
                self.drafts[key] = self.graph.new_input(shape, dtype=source.dtype, name=f"draft{len(self.drafts)}")
            return self.drafts[key]
        layout = self.layouts[source.name]
        if source.name not in self.inputs:
            name = self.names.get(source.name, source.name)
            band = _band_in_layout(source, layout)
            self.inputs[source.name] = (
                self.graph.new_input(layout.shape, dtype=source.dtype, strides=layout.strides, name=name)
                if band is None
                else self.graph.band(layout.shape, band.lower, band.upper, name)
            )
        if wish == layout:
            return self.inputs[source.name]
        inner = [[piece for digit in group for piece in _digits_in_layout(digit, layout)] for group in moved]
        return self._tensor(self.inputs[source.name], _row_major_offset(offset, layout), inner)

    def _tensor(self, base: Tensor, offset: int, groups: Sequence[Sequence[Digit]]) -> Tensor:
        """Write the digits of a program's tensor as at most one reshape, slices, a transpose and a reshape."""
        moved = [merge_digits([digit for digit in group if digit[1]]) for group in groups]
        shape = tuple(prod(n for n, _ in group) for group in moved)
        wanted = [digit for group in moved for digit in group]
        axes = sorted(wanted, key=lambda digit: -digit[1])
        steps = [step for _, step in axes]
        total = prod(base.shape)
        outer = [total, *steps]
        if any(a % b for a, b in zip(outer, steps, strict=False)):
            text = f"expected steps that divide each other and {total} elements, got {steps}"
            raise unsupported_error(text, "take every element, or slices of extents that the step divides")
        last = steps[-1] if steps else total
        factors = [*(a // b for a, b in zip(outer, steps, strict=False)), last]
        starts, left = [], offset
        for step in steps:
            starts.append(left // step)
            left %= step
        parts = [(start, start + n) for start, (n, _) in zip(starts, axes, strict=True)] + [(left, left + 1)]
        whole = [start == 0 and stop == extent for (start, stop), extent in zip(parts, factors, strict=True)]
        if any(stop > extent for (_, stop), extent in zip(parts, factors, strict=True)):
            raise unsupported_error(f"expected digits inside of {list(base.shape)}, got {axes} from {offset} on")
        found = base
        if not all(whole):
            found = self._sliced(base, factors, parts)
        if wanted != axes:
            found = self._shaped(found, tuple(n for n, _ in axes))
            found = self.graph.transpose(found, perm=[axes.index(digit) for digit in wanted])
        return self._shaped(found, shape)

    def _sliced(self, base: Tensor, factors: Sequence[int], parts: Sequence[tuple[int, int]]) -> Tensor:
        kept = [(n, part) for n, part in zip(factors, parts, strict=True) if n > 1]
        found = base
        if [n for n in base.shape if n > 1] != [n for n, _ in kept]:
            found = self._shaped(base, tuple(n for n, _ in kept))
        places = [axis for axis, n in enumerate(found.shape) if n > 1]
        for axis, (n, (start, stop)) in zip(places, kept, strict=True):
            if (start, stop) != (0, n):
                found = self.graph.slice(found, axis, start, stop)
        return found


def _band_in_layout(source: ReceivedTensor, layout: InputLayout) -> Band | None:
    """Return the band of an input with a layout in the memory of a band mask; None if it is to be passed."""
    mask = Input(source.name, DTensor(source.shape, source.dtype), source.strides, source.band)
    found = band_at((mask,), StorageLocation(0, layout.strides, layout.offset), layout.shape)
    return None if found == Band(None, None) else found  # all of it is 1


def _is_gapless(layout: InputLayout) -> bool:
    """Return whether a layout in stride order has no gaps between its elements."""
    return layout.strides == row_major(layout.shape)


def _digits_in_layout(digit: Digit, layout: InputLayout) -> list[Digit]:
    """Convert a digit of a tensor's memory to digits of the row-major index of its declared layout.

    Sound: a digit is cut into pieces, as ``refined`` cuts them, each of which lies within one dim of the layout: the
    one with the largest stride that does not exceed the piece's.
    """
    extent, stride = digit
    places = sorted(zip(layout.strides, row_major(layout.shape), layout.shape, strict=True), reverse=True)
    for step, place, length in places:
        if length > 1 and step <= stride and stride % step == 0:
            jump = stride // step
            room = -(-length // jump)
            if extent <= room:
                return [(extent, jump * place)]
            if jump * room == length and extent % room == 0:
                return [*_digits_in_layout((extent // room, stride * room), layout), (room, jump * place)]
            break
    text = f"expected dims within those of an input with shape {list(layout.shape)}, strides {list(layout.strides)}"
    raise unsupported_error(f"{text}, got a dim of extent {extent} and stride {stride}")


def _row_major_offset(offset: int, layout: InputLayout) -> int:
    """Convert a memory offset to the row-major index of a layout."""
    left, found = offset - layout.offset, 0
    places = sorted(zip(layout.strides, row_major(layout.shape), layout.shape, strict=True), reverse=True)
    for step, place, length in places:
        if length > 1:
            found += left // step * place
            left %= step
    return found
