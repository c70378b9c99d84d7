"""Conversion of torch graphs to programs: the importable operators, and one program for each region of them."""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import isfinite, prod
from typing import Any, Final

import torch

import mirage_formal.torch.index_maps as views
import mirage_formal.torch.view_rules as moves
from mirage_formal.frontend.argument_checks import error_at_user_line
from mirage_formal.frontend.tensor import Tensor
from mirage_formal.graph.types import Band, DType
from mirage_formal.support.errors import MirageError, UnsupportedError
from mirage_formal.torch.analysis.aliases import aliased_results, owners
from mirage_formal.torch.analysis.regions import convex_parts
from mirage_formal.torch.call import MASK, NARROW, TYPES, OperatorCall, Written, constant_tensor
from mirage_formal.torch.capture import CapturedGraph, operator_name, source_lines
from mirage_formal.torch.deadline import NO_DEADLINE, Deadline
from mirage_formal.torch.import_result import Binding, Imported, ImportRemark, Output, Region, UnsupportedNode
from mirage_formal.torch.imported_values import (
    ImportedProgram,
    ImportedValue,
    InputLayout,
    ReceivedTensor,
    UniformValue,
    unsupported_error,
)
from mirage_formal.torch.op_table import TorchOperatorRow, rules
from mirage_formal.torch.view_propagation import cast

_NARROW: Final = frozenset(f"torch.{dtype.value}" for dtype in NARROW)
#: Rounding modes of values between operators: see ``import_captured``.
ROUNDINGS: Final = ("fused", "exact")


#: Most constant indices of one operator.
MOST_INDICES: Final = 1 << 16

#: Rules of operators with possibly empty operands, such as a cache before its first token.
_OF_NOTHING = (moves.identity_rule, moves.concat)


class _RegionRefusal(Exception):
    """Signal: an operator that can be imported by itself does not fit into the current region."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node
        self.reason = reason


@dataclass(slots=True)
class _Draft:
    """Program, values and notes from one attempt to write a region."""

    program: ImportedProgram
    values: dict[str, Written]
    notes: list[ImportRemark] = field(default_factory=list)


def import_captured(captured: CapturedGraph, rounding: str = "fused", deadline: Deadline = NO_DEADLINE) -> Imported:
    """Convert the operators of a torch graph that the operator table has to programs.

    Args:
        captured: The graph.
        rounding: Which roundings to a narrower element type are operators of the programs. "fused": casts whose result
            becomes a wider type again, as torch.compile does. "exact": all casts, and the results of all operators of
            narrower types.
        deadline: Deadline, which is looked at before each region.

    Raises:
        UnsupportedError: There is no such rounding.
        DeadlineReachedError: The deadline has come before all regions were written.
    """
    return _GraphImport(captured, deadline, exact=parse_rounding(rounding) == "exact").run()


def parse_rounding(given: object) -> str:
    """Return the rounding mode if it is one of ``ROUNDINGS``.

    Raises:
        UnsupportedError: It is none.
    """
    if given not in ROUNDINGS:
        text = f"rounding: expected {' or '.join(ROUNDINGS)}, got {given!r}"
        raise error_at_user_line(UnsupportedError, text, 'leave it out, or write rounding="exact"')
    return str(given)


class _GraphImport:
    def __init__(self, captured: CapturedGraph, deadline: Deadline, *, exact: bool) -> None:
        self._captured = captured
        self._deadline = deadline
        self._exact = exact
        self._rules: Mapping[str, TorchOperatorRow] = rules()
        self._nodes: dict[str, Any] = {node.name: node for node in captured.module.graph.nodes}
        self._order = [
            name
            for name, node in self._nodes.items()
            if node.op == "call_function" and (node.users or node.target is not operator.getitem)
        ]
        self._reads = {name: [n.name for n in self._nodes[name].all_input_nodes] for name in self._order}
        self._free = {name for name in self._order if self._is_free(name)}
        self._shared = aliased_results(captured.module, captured.results, owners(captured.module))
        self._left: dict[str, str] = {}
        self._narrow: set[str] = set()
        self._given = dict(captured.given)
        self._arguments = dict(captured.arguments)
        self._made: dict[str, Any] = {}
        self._laid: dict[str, Any] = {}

    def run(self) -> Imported:
        """Import the graph; repeat without each operator that turns out to fit no region."""
        checks = [name for name in self._order if self._is_check(name)]
        state = self._from_state()
        for name in self._order:
            reason = None if name in checks else self._refused(name)
            if (
                reason is None
                and name in state
                and name not in self._free
                and _element_type_name(self._nodes[name]) == MASK
            ):
                reason = "a mask that no argument changes"
            if reason is not None:
                self._left[name] = reason
        while True:
            self._settle(state)
            self._narrow = self._rounded()
            try:
                found = [self._region(part) for part in self._parts(set(checks))]
                break
            except _RegionRefusal as stop:
                self._left[stop.node] = stop.reason
        regions = tuple(region for region, _ in found if region is not None)
        taken = {name for region in regions for name in (*region.nodes, *region.views)}
        views = [name for name in self._order if name not in taken and name not in self._left and name not in checks]
        for name in [name for name in views if name not in self._free]:
            self._left[name] = "its result is its operand, or nothing reads it"
        checked = [
            ImportRemark(name, "asserts what the import found to hold", source_lines(self._nodes[name])[0])
            for name in checks
        ]
        read = {item.node for region in regions for item in region.inputs}
        laid = {name: tensor for name, tensor in self._laid.items() if name in read}
        return Imported(
            module=self._captured.module,
            regions=regions,
            left=tuple(self._why(name) for name in self._order if name in self._left and name not in state),
            ahead=tuple(self._why(name) for name in self._order if name in self._left and name in state),
            views=tuple(name for name in views if name in self._free),
            notes=tuple(note for _, some in found for note in some) + tuple(checked),
            arguments={**self._arguments, **dict.fromkeys(laid, "constant")},
            given={**self._given, **laid},
            results=self._captured.results,
            writes=self._captured.writes,
        )

    # --- which operators ----------------------------------------------------------------------------------------------

    def _is_free(self, name: str) -> bool:
        row = self._rules.get(str(self._nodes[name].target))
        return self._nodes[name].target is operator.getitem or (row is not None and row.free)

    def _is_check(self, name: str) -> bool:
        row = self._rules.get(str(self._nodes[name].target))
        return row is not None and row.check

    def _from_state(self) -> set[str]:
        """Return the nodes that depend on no argument."""
        varies = {name for name in self._captured.arguments if name not in self._captured.given}
        for name in self._order:
            if not varies.isdisjoint(self._reads[name]):
                varies.add(name)
        return set(self._order) - varies

    def _settle(self, state: Collection[str]) -> None:
        """Leave to torch every operator that must stay because of operators that already stay.

        An operator that torch computes once from state stays with all its operands; the results of an operator with
        several all stay or none does.
        """
        before = -1
        while before != len(self._left):
            before = len(self._left)
            for name in reversed(self._order):
                node = self._nodes[name]
                if name in self._left and (name in state or node.target is operator.getitem):
                    for other in self._reads[name]:
                        if other in self._reads and other not in self._left:
                            self._left[other] = f"read by {operator_name(node)}, which stays with torch"
                elif name not in self._left and node.target is operator.getitem and node.args[0].name in self._left:
                    self._left[name] = f"a result of {operator_name(node.args[0])}, which stays with torch"

    def _why(self, name: str) -> UnsupportedNode:
        where, through = source_lines(self._nodes[name])
        return UnsupportedNode(name, operator_name(self._nodes[name]), self._left[name], where, through)

    def _refused(self, name: str) -> str | None:
        """Return the reason why an operator cannot be imported, found by importing it alone; None if it can."""
        node = self._nodes[name]
        if node.target is operator.getitem:
            return None
        row = self._rules.get(str(node.target))
        if row is None:
            return "the table has no rule for it"
        if row.refused:
            return row.refused
        if row.write is moves.index_copy and name in self._captured.results[: len(self._captured.writes)]:
            return "torch writes it in place"
        if row.first and any(user.args[1] and user.users for user in node.users):
            return "programs have no integers, so no indices"
        try:
            layouts = None
            for _ in range(2):
                draft = _Draft(self._program(layouts, {}), {})
                self._write(name, draft)
                layouts = draft.program.chosen()
        except MirageError as error:
            return error.what
        return None

    def _rounded(self) -> set[str]:
        """Return the nodes of float32 tensors whose readers all round them to a narrower type in the end."""
        found: set[str] = set()
        if self._exact:
            return found
        for name in reversed(self._order):
            users = list(self._nodes[name].users)
            if _element_type_name(self._nodes[name]) == "torch.float32" and users:
                kept = [user for user in users if user.name not in self._left and not self._is_check(user.name)]
                outside = any(user.name in self._left or user.op == "output" for user in users)
                if (
                    kept
                    and not outside
                    and all(_element_type_name(user) in _NARROW or user.name in found for user in kept)
                ):
                    found.add(name)
        return found

    def _is_widened(self, name: str) -> bool:
        """Return whether a node's narrower result is converted to another type again, directly or through views."""
        stack, seen = [self._nodes[name]], set[str]()
        while stack:
            node = stack.pop()
            if node.name in seen:
                continue
            seen.add(node.name)
            for user in node.users:
                if self._is_check(user.name) or user.op == "output":
                    continue
                if (
                    _element_type_name(user) == _element_type_name(node)
                    or user.target is operator.getitem
                    or not _element_type_name(user)
                ):
                    stack += [user] if self._is_free(user.name) else []
                elif _element_type_name(user) != MASK:
                    return True
        return False

    def _parts(self, checks: Collection[str]) -> list[list[str]]:
        taken = {name for name in self._order if name not in self._left and name not in checks}
        computing = taken - self._free
        if not self._left or all(name in self._from_state() for name in self._left):
            whole = [name for name in self._order if name in taken]
            return [whole] if computing else []
        parts = convex_parts([name for name in self._order if name not in checks], self._reads, taken)
        return [part for part in parts if not computing.isdisjoint(part)]

    # --- one region ---------------------------------------------------------------------------------------------------

    def _region(self, part: Sequence[str]) -> tuple[Region | None, list[ImportRemark]]:
        self._deadline.check()
        names = self._names()
        layouts: dict[str, InputLayout] | None = None
        for _ in range(2):
            draft = _Draft(self._program(layouts, names), {})
            for name in part:
                try:
                    self._write(name, draft)
                except MirageError as error:
                    raise _RegionRefusal(name, error.what) from error
            outputs, views = self._outputs(part, draft)
            layouts = draft.program.chosen()
        if not outputs:
            return None, []
        inputs = tuple(self._binding(name, draft.program) for name in draft.program.inputs)
        nodes = tuple(name for name in part if name not in views)
        return Region(draft.program.graph, nodes, inputs, tuple(outputs), tuple(views)), draft.notes

    def _outputs(self, part: Sequence[str], draft: _Draft) -> tuple[list[Output], list[str]]:
        """Return the values used outside the region: program results, and views of its inputs or of one of its results.

        A graph result that shares memory with another result is such a view: torch makes it from that result, so that
        both share memory here too.
        """
        outputs: list[Output] = []
        views: list[str] = []
        numbers: dict[int, int] = {}
        inside = set(part)
        wanted = {owner for name, owner in self._shared.items() if name in inside}
        for name in part:
            node, value = self._nodes[name], draft.values[name]
            outside = [user for user in node.users if user.name not in inside and not self._is_check(user.name)]
            if isinstance(value, tuple) or not (outside or name in wanted):
                continue
            if self._shared.get(name) in inside and all(user.op == "output" for user in outside):
                views.append(name)
                continue
            if isinstance(value.base, ReceivedTensor) and value.keep is None:
                views.append(name)
                continue
            if isinstance(value.base, UniformValue):
                raise _RegionRefusal(name, "a result that is one number needs no program")
            try:
                found = self._finished(node, value, draft)
            except MirageError as error:
                raise _RegionRefusal(name, error.what) from error
            assert isinstance(found.base, Tensor)
            if found.base in draft.program.graph.inputs:  # a sum over one element, and the like
                views.append(name)
                continue
            if found.base.number not in numbers:
                numbers[found.base.number] = len(numbers)
                draft.program.graph.mark_output(found.base)
            outputs.append(Output(name, numbers[found.base.number], found.shape, found.view.strides))
        return outputs, views

    def _finished(self, node: Any, value: ImportedValue, draft: _Draft) -> ImportedValue:
        """Return a result in torch's element type, materialized as a tensor of its own."""
        dtype = TYPES.get(_element_type_name(node))
        if dtype is None or not dtype.floating:
            floats = ", ".join(name for name in TYPES if name != MASK)
            raise unsupported_error(f"expected a result of {floats}, got {_element_type_name(node)}")
        if value.keep is not None:
            raise unsupported_error("expected finite numbers, got minus infinity, which only a softmax may read")
        draft.program.graph.line = source_lines(node)[0]
        if value.dtype is not dtype:
            draft.notes.append(ImportRemark(node.name, f"cast from {value.dtype} to {dtype}", source_lines(node)[0]))
        found = cast(draft.program, value, dtype)
        assert isinstance(found.base, Tensor)
        shape, strides = _shape(node), tuple(node.meta["val"].stride())
        kept = found.view.plain and found.view.onto(prod(found.base.shape))
        if kept and _have_same_strides(shape, found.view.strides, strides):
            return found
        # As torch has it in memory: its dims in the order of their strides, if nothing lies between its elements.
        order = sorted(range(len(shape)), key=lambda d: -strides[d])
        if not views.strided_view(shape, strides).onto(prod(shape)):
            order = list(range(len(shape)))
        laid = draft.program.lay(found, [found.view.dims[d] for d in order], real=True)
        dims = views.row_major_view([shape[d] for d in order]).dims
        return ImportedValue(laid, views.View(tuple(dims[order.index(d)] for d in range(len(shape)))))

    def _binding(self, name: str, program: ImportedProgram) -> Binding:
        source, declared = program.sources[name], program.inputs[name]
        assert program.layouts is not None
        what = "constant" if name in self._made else self._arguments.get(name)
        if what is None:
            where, _ = source_lines(self._nodes[name])
            what = f"computed by torch: {operator_name(self._nodes[name])}" + (f" at {where}" if where else "")
        layout = program.layouts[name]
        found = Binding(declared.label, what, name, source.shape, source.strides, layout, source.dtype)
        return self._bound(found) if name in self._made else found

    def _bound(self, item: Binding) -> Binding:
        """Return the binding of an import's constant, converted once to the program's element type and layout."""
        layout = item.layout
        numbers = "_".join(map(str, (*layout.shape, *layout.strides, layout.offset)))
        name = self._free_name(f"{item.node}_{item.dtype.value}_{numbers}")
        if name not in self._laid:
            self._laid[name] = item.read(self._made[item.node])
        strides = tuple(self._laid[name].stride())
        own = InputLayout(layout.shape, strides, 0)
        return replace(item, node=name, shape=layout.shape, strides=strides, layout=own)

    def _names(self) -> dict[str, str]:
        """Return the names of inputs: those of parameters and buffers, and the node names of others."""
        found: dict[str, str] = {}
        for name, what in self._arguments.items():
            kind, _, own = what.partition(" ")
            wanted = own.replace(".", "_") if kind in ("parameter", "buffer") else name
            taken = wanted in found.values() or not wanted.isidentifier()
            found[name] = name if taken else wanted
        return found

    # --- one operator -------------------------------------------------------------------------------------------------

    def _write(self, name: str, draft: _Draft) -> None:
        """Import one torch operator into a draft."""
        node = self._nodes[name]
        where, _ = source_lines(node)
        draft.program.graph.line = where
        if node.target is operator.getitem:
            whole = draft.values.get(node.args[0].name)
            assert isinstance(whole, tuple)
            draft.values[name] = whole[node.args[1]]
            return
        row = self._rules[str(node.target)]
        places = {str(n.meta["val"].device) for n in (node, *node.all_input_nodes) if _element_type_name(n)}
        if len(places) > 1:
            raise unsupported_error(f"expected tensors on one device, got {', '.join(sorted(places))}")
        given = {item.name: self._argument(arg, draft) for item, arg in _schema_arguments(node)}
        for item, arg in _schema_arguments(node):
            kinds = {_element_type_name(n) for n in _nodes_of_argument(arg)}
            if MASK in kinds and item.name not in row.masks and not row.free:
                raise unsupported_error(f"expected floating-point numbers as {item.name}, got booleans")
        if row.write not in _OF_NOTHING and any(0 in _shape(n) for n in (node, *node.all_input_nodes)):
            raise unsupported_error("expected at least one element, got an empty tensor")
        if row.typed and isinstance(given.get("other"), ImportedValue):
            given["dtype"] = _element_type_name(
                next(arg for item, arg in _schema_arguments(node) if item.name == "other")
            )
            del given["other"]
        rounded = row.write is moves.cast_rule and (self._exact or self._is_widened(name))
        rounded = rounded and _element_type_name(node) != _element_type_name(node.all_input_nodes[0])
        call = OperatorCall(
            draft.program,
            given,
            _shape(node),
            TYPES.get(_element_type_name(node)),
            narrow=name in self._narrow,
            rounded=rounded,
            mask=self._mask,
            host=places == {"cpu"},
        )
        draft.values[name] = found = self._rounded_result(node, row.write(call), draft)
        draft.program.graph.stored |= {
            one.base.number
            for one in (found if isinstance(found, tuple) else (found,))
            if isinstance(one.base, Tensor) and not self._is_free(name)
        }
        draft.notes += [ImportRemark(name, note, where) for note in call.notes]

    def _argument(self, arg: Any, draft: _Draft) -> Any:
        if isinstance(arg, torch.fx.Node):
            if arg.name in draft.values:
                return draft.values[arg.name]
            return self._source(arg)
        if isinstance(arg, list | tuple):
            return tuple(self._argument(item, draft) for item in arg)
        return str(arg) if isinstance(arg, torch.dtype) else arg

    def _source(self, node: Any) -> Any:
        """Return the value of a given tensor: an input, or a constant for a single number.

        A number that is not finite is returned as a float.
        """
        tensor = node.meta.get("val")
        if not isinstance(tensor, torch.Tensor):
            raise unsupported_error(
                f"expected a tensor, got {type(tensor).__name__}: a size that is known at run time only"
            )
        constant = self._given.get(node.name)
        label = self._arguments.get(node.name)
        kind = _element_type_name(node)
        if label == "constant" and constant is not None and constant.dim() == 0 and constant.device.type != "meta":
            number = constant.item()
            floating = constant.is_floating_point() and kind in TYPES and isfinite(number)
            return constant_tensor(Fraction(number), (), TYPES[kind]) if floating else number
        if (numbers := self._integers(node)) is not None:
            return numbers
        if kind not in TYPES:
            raise unsupported_error(f"expected tensors of {', '.join(TYPES)}, got {kind}")
        name = self._captured.same.get(node.name, node.name)
        shape, strides = _shape(node), tuple(tensor.stride())
        if not all(isinstance(n, int) for n in (*shape, *strides)):
            raise unsupported_error("expected extents that are known at import, got a symbolic one")
        if not _are_elements_distinct(shape, strides):
            raise unsupported_error(
                f"expected elements that lie apart in memory, got strides {list(strides)} of {list(shape)}"
            )
        return ImportedValue(ReceivedTensor(name, shape, strides, TYPES[kind]), views.strided_view(shape, strides))

    def _integers(self, node: Any) -> tuple[int, ...] | None:
        """Return the elements of a constant index vector: a constant of the module's code, or a range."""
        kept = self._nodes[node.name].meta["val"]
        if kept.dtype not in (torch.int32, torch.int64) or kept.dim() != 1 or not 0 < kept.numel() <= MOST_INDICES:
            return None
        while str(node.target) in ("aten.lift_fresh_copy.default", "aten.detach_.default", "aten.clone.default"):
            node = node.args[0]
        if self._arguments.get(node.name) == "constant" and self._given.get(node.name) is not None:
            found = self._given[node.name]
            return None if found.device.type == "meta" else tuple(found.tolist())
        bounds = node.args[:3]
        if str(node.target).startswith("aten.arange.") and all(isinstance(n, int) for n in bounds):
            return tuple(range(*bounds))
        return None

    def _free_name(self, name: str) -> str:
        """Return a name for an import's constant that no node of the torch graph has."""
        while name in self._nodes:
            name += "_"
        return name

    def _program(self, layouts: dict[str, InputLayout] | None, names: dict[str, str]) -> ImportedProgram:
        return ImportedProgram(layouts, names, stored=self._number)

    def _mask(self, rows: int, columns: int, diagonal: int, side: str) -> ImportedValue:
        """Return a constant mask: 1 on a diagonal of a matrix, and below or above it."""
        name = self._free_name(f"{side}_{rows}_{columns}_{diagonal}".replace("-", "m"))
        if name not in self._made:
            ones = torch.ones(rows, columns, dtype=torch.bool)
            ones = ones if side == "upper" else ones.tril(diagonal)
            self._made[name] = ones if side == "lower" else ones.triu(diagonal)
        band = Band(None if side == "lower" else diagonal, None if side == "upper" else diagonal)
        return ImportedValue(
            ReceivedTensor(name, (rows, columns), (columns, 1), DType.BOOL, band), views.row_major_view((rows, columns))
        )

    def _number(self, constant: UniformValue) -> ReceivedTensor:
        """Return a tensor of one element for a number, for operators that take no numbers."""
        text = f"{constant.number.numerator}_{constant.number.denominator}".replace("-", "m")
        name = self._free_name(f"number_{text}_{constant.dtype.value}")
        if name not in self._made:
            self._made[name] = torch.tensor([float(constant.number)]).to(getattr(torch, constant.dtype.value))
        return ReceivedTensor(name, (1,), (1,), constant.dtype)

    def _rounded_result(self, node: Any, found: Written, draft: _Draft) -> Written:
        """Return a result rounded to torch's narrower element type, if "exact" rounding or a visible cast needs it."""
        narrows = _element_type_name(node) in _NARROW and any(
            _element_type_name(n) == "torch.float32" for n in node.all_input_nodes
        )
        if self._is_free(node.name) or not (self._exact or (narrows and self._is_widened(node.name))):
            return found
        if isinstance(found, tuple):
            return tuple(self._one_rounded(value, draft) for value in found)
        return self._one_rounded(found, draft)

    @staticmethod
    def _one_rounded(value: ImportedValue, draft: _Draft) -> ImportedValue:
        graph, base = draft.program.graph, value.base
        if value.dtype not in NARROW or not isinstance(base, Tensor) or base in graph.inputs:
            return value
        return ImportedValue(graph.round_to(base, value.dtype.value), value.view, value.keep)


def _are_elements_distinct(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether the elements of a strided tensor do not overlap: each stride exceeds the span of smaller ones."""
    reach = 0
    for extent, stride in sorted(zip(shape, strides, strict=True), key=lambda pair: pair[1]):
        if extent > 1 and stride:
            if stride <= reach:
                return False
            reach += (extent - 1) * stride
    return True


def _have_same_strides(shape: Sequence[int], mine: Sequence[int], theirs: Sequence[int]) -> bool:
    """Return whether two tensors of one shape have the same strides; strides of extents of 1 do not matter."""
    return all(n == 1 or a == b for n, a, b in zip(shape, mine, theirs, strict=True))


def _element_type_name(node: Any) -> str:
    """Return the element type of a node's tensor by torch's name; empty if it is no tensor."""
    tensor = node.meta.get("val")
    return str(tensor.dtype) if isinstance(tensor, torch.Tensor) else ""


def _shape(node: Any) -> tuple[Any, ...]:
    tensor = node.meta.get("val")
    return tuple(tensor.shape) if isinstance(tensor, torch.Tensor) else ()


def _nodes_of_argument(arg: Any) -> list[Any]:
    """Return the nodes in an argument."""
    if isinstance(arg, torch.fx.Node):
        return [arg]
    return [node for item in arg for node in _nodes_of_argument(item)] if isinstance(arg, list | tuple) else []


def _schema_arguments(node: Any) -> list[tuple[Any, Any]]:
    """Return the arguments of the operator's schema, each with its given or default value."""
    found = []
    for place, item in enumerate(node.target._schema.arguments):
        if place < len(node.args):
            found.append((item, node.args[place]))
        else:
            found.append((item, node.kwargs.get(item.name, item.default_value if item.has_default_value() else None)))
    return found
