"""Numerical comparison of imports with torch: each region once, in the module's own types, before any search.

The program of a region is evaluated in its element types (semantics/typed_evaluation.py) and compared with torch's
results for the same nodes, under the contract (comparison/contract.py). The tensors are those of the call that the
module is imported with, as torch computes them, and generated sets (comparison/samples.py). Of regions with equal
programs and operators, such as layers of a model, the first is compared. Regions that differ stay with torch. The
report names the smallest operator that differs: the first differing result if all results of the region are compared.
It says if that operator also differs when it is imported alone.

The work is bounded: a larger region is compared on fewer sets, or not at all, and the report says so. Tensors on the
meta device have no values, so only generated sets are compared.

Sound: only regions that agree are replaced, and regions that are too large to be compared say so. A deadline leaves out
no set: a region whose comparison it has ended stays with torch.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from hashlib import sha256
from math import prod
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch.fx import Graph, GraphModule, Node

from mirage_formal.frontend.origins import Origin
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.semantics.typed_evaluation import run_typed
from mirage_formal.support.errors import MirageError
from mirage_formal.torch.capture import CapturedGraph, operator_name, source_lines
from mirage_formal.torch.comparison.contract import Difference, ExpectedResult, difference
from mirage_formal.torch.comparison.node_evaluation import NodeEvaluator, nodes_between
from mirage_formal.torch.comparison.samples import SETS, draw_tensors
from mirage_formal.torch.comparison.thread_limits import limit_threads
from mirage_formal.torch.convert import import_captured as import_of
from mirage_formal.torch.deadline import NO_DEADLINE, STOPPED, Deadline, DeadlineReachedError, now
from mirage_formal.torch.import_result import Imported, Region

#: Most elements that one evaluation of a region computes, and most multiplications of its products.
MOST_ELEMENTS: Final = 1 << 27
MOST_PRODUCTS: Final = 1 << 36
#: Most work, in elements or 16 multiplications, of all evaluations of a region; at least one set is evaluated.
_BUDGET: Final = 1 << 26
#: Number of random roundings of small regions, and of large ones.
_SAMPLES: Final = 4
_FEWER: Final = 1
_SMALL: Final = 1 << 14
_LARGE: Final = 1 << 22
#: Most work that an evaluation does in a second, for its least duration before one was measured.
_FASTEST: Final = 1 << 28
#: Work of judging one element of a result, in elements.
_JUDGED: Final = 16
#: Share of the time until a deadline for this comparison; the rest is for searches.
_COMPARED: Final = 2 / 3
#: Share of that time for generated sets; the rest is for the import's own arguments.
_DRAWN: Final = 0.75
#: Most elements of all generated sets that are kept for the comparison of candidates.
_DRAWN_ELEMENTS: Final = 1 << 24
#: Evaluator of a program or a candidate: from an array for each input, one for each output.
_Evaluator = Callable[[Sequence[Any]], Sequence[Any]]
_T = TypeVar("_T")
#: Name of the set of the import's own arguments.
GIVEN: Final = "the arguments"


@dataclass(frozen=True, slots=True)
class ImportFault:
    """An operator whose import breaks the contract.

    Attributes:
        node: The node of the torch graph whose result differs.
        operator: Operator of the node, as in "aten.exp.default".
        where: The user's line.
        values: Name of the set of tensors that shows it.
        difference: The difference.
        alone: Whether the operator differs when it is imported alone.
    """

    node: str
    operator: str
    where: Origin | None
    values: str
    difference: Difference
    alone: bool

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where is not None else ""
        among = "" if self.alone else ", behind the operators that it reads"
        return f"the import differs from PyTorch in {self.operator}{place}{among}: {self.difference} ({self.values})"


@dataclass(frozen=True, slots=True)
class GeneratedSet:
    """Generated tensors with PyTorch's results.

    Attributes:
        style: Style of the tensors.
        leaves: The tensors by name.
        expected: The expected values of each output.
    """

    style: str
    leaves: Mapping[str, Any]
    expected: Mapping[str, ExpectedResult]


@dataclass(slots=True)
class ImportComparison:
    """Result of comparing an import with torch.

    Attributes:
        faults: Fault of each region that differs, by number.
        sets: Number of compared sets of tensors of each region.
        skipped: Reason why a region was compared on fewer sets than others, or not at all.
        stopped: For each region whose comparison a deadline has ended, a reason for a report. It is not replaced.
        values: Tensors of the argument placeholders, if there are such regions.
        drawn: For small regions their generated sets, each with its style and PyTorch's results, for candidates.
        room: Elements that further such sets may have.
    """

    faults: dict[int, ImportFault] = field(default_factory=dict)
    sets: dict[int, int] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    stopped: dict[int, str] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    drawn: dict[int, list[GeneratedSet]] = field(default_factory=dict)
    room: int = _DRAWN_ELEMENTS

    def kept(self, number: int) -> str:
        """Return the reason why a region stays with torch; empty if it may be replaced."""
        return str(self.faults.get(number, "")) or self.stopped.get(number, "")

    def said(self, number: int) -> str:
        """Return a remark for a report on the sets that a region was compared on; empty if it was not compared."""
        if number in self.skipped and not self.sets.get(number):
            return self.skipped[number]
        count = self.sets.get(number, 0)
        text = f"compared with PyTorch on {count} set{'s' if count != 1 else ''} of tensors" if count else ""
        return f"{text} ({self.skipped[number]})" if number in self.skipped else text


def arguments_of(imported: Imported, leaves: Sequence[Any]) -> dict[str, Any]:
    """Return the tensors of a call by the placeholders of an import that stand for its arguments.

    Args:
        imported: The import.
        leaves: The flattened arguments; one that is no tensor has a placeholder as well.
    """
    names = [node.name for node in imported.module.graph.nodes if node.op == "placeholder"]
    state = ("parameter", "buffer", "constant")
    names = [name for name in names if imported.arguments.get(name, "argument").partition(" ")[0] not in state]
    return {name: x for name, x in zip(names, leaves, strict=True) if isinstance(x, torch.Tensor)}


def compare_with_torch(
    imported: Imported,
    values: Mapping[str, Any] | None = None,
    sets: Sequence[str] = SETS,
    deadline: Deadline = NO_DEADLINE,
    numbers: Collection[int] | None = None,
) -> ImportComparison:
    """Compare the regions of an import with torch.

    Sound: a region is in ``stopped`` unless all its sets were compared before the deadline.

    Args:
        imported: The import.
        values: Tensors of the argument placeholders by name, some of them possibly without memory; None if there are no
            values.
        sets: Styles of the generated sets; large regions take the first ones.
        deadline: Deadline of the call: the comparison has two thirds of the time that is left.
        numbers: Numbers of the regions to compare; None for all.
    """
    found, deadline = ImportComparison(), deadline.share(_COMPARED)
    known: dict[tuple[str, str], int] = {}
    numbers = range(len(imported.regions)) if numbers is None else numbers
    pieces = {number: RegionPiece(imported, number, deadline) for number in numbers}
    todo: dict[int, RegionPiece] = {}
    for number, piece in pieces.items():
        first = known.setdefault(piece.text, number)
        if first == number:
            todo[number] = piece
    drawn = deadline.share(_DRAWN)
    for number, piece in todo.items():
        try:
            drawn.check()
            _with_sets(found, number, piece, sets, drawn)
        except DeadlineReachedError:
            found.stopped[number] = _stop(found, number)
    done = {*found.faults, *found.stopped}
    waiting = {number: piece for number, piece in todo.items() if number not in done and piece.affordable}
    left = set(waiting)
    try:
        for number, leaves in _values_of_call(imported, waiting, values or {}, deadline):
            _compare(found, number, waiting[number], GIVEN, leaves)
            left.discard(number)
    except DeadlineReachedError:
        found.stopped |= {number: _stop(found, number) for number in left}
    for number, piece in pieces.items():
        first = known[piece.text]
        if first in found.faults:
            found.faults[number] = found.faults[first]
        if first in found.sets:
            found.sets[number] = found.sets[first]
        if first in found.skipped:
            found.skipped[number] = found.skipped[first]
        if first in found.stopped:
            found.stopped[number] = found.stopped[first]
    found.values = (values or {}) if found.stopped else {}
    return found


def _stop(found: ImportComparison, number: int) -> str:
    """Return the reason why a region stays with torch whose comparison a deadline has ended."""
    count = found.sets.get(number, 0)
    return f"{STOPPED} its comparison with PyTorch was complete: {count} set{'s' if count != 1 else ''} of tensors"


def _with_sets(
    found: ImportComparison, number: int, piece: RegionPiece, sets: Sequence[str], deadline: Deadline
) -> None:
    if not piece.affordable:
        found.skipped[number] = f"not compared with PyTorch: {piece.size}, more than are evaluated"
        return
    if not piece.drawable:
        found.skipped[number] = "no drawn sets: it reads integers"
        return
    count = min(len(sets), max(1, _BUDGET // piece.work))
    if count < len(sets):
        found.skipped[number] = f"{count} of {len(sets)} drawn sets: {piece.size}"
    for place, style in enumerate(sets[:count]):
        seed = int.from_bytes(sha256(f"{piece.text} {place}".encode()).digest()[:4], "big")
        if number not in found.faults:
            deadline.check()
            leaves = piece.draw(style, seed)
            expected = _compare(found, number, piece, f"drawn: {style}, set {place}", leaves)
            size = sum(x.numel() for x in leaves.values())
            if expected is not None and size <= found.room:
                found.room -= size
                found.drawn.setdefault(number, []).append(GeneratedSet(style, leaves, expected))


def _compare(
    found: ImportComparison, number: int, piece: RegionPiece, name: str, leaves: Mapping[str, Any]
) -> Mapping[str, ExpectedResult] | None:
    """Compare a region on one set of tensors; return PyTorch's results, None if it has none."""
    try:
        expected = piece.expected(leaves)
    except RuntimeError:  # torch has no result, as of a logarithm's loss outside of 0 to 1
        return None
    differing = next(piece.differences(leaves, expected), None)
    found.sets[number] = found.sets.get(number, 0) + 1
    if differing is None:
        return expected
    node, how = differing
    try:
        fault = locate_fault(piece, leaves, name)
    except DeadlineReachedError:  # the region differs, but there is no time to find the operator
        fault = None
    found.faults[number] = fault or _fault(piece, node, name, how, alone=False)
    return expected


def _fault(piece: RegionPiece, node: str, name: str, how: Difference, *, alone: bool) -> ImportFault:
    own = _producer(piece.nodes[node])
    return ImportFault(node, operator_name(own), source_lines(own)[0], name, how, alone)


class RegionPiece:
    """One region with the torch nodes that it replaces.

    Attributes:
        region: The region.
        nodes: All nodes of the torch graph, by name.
        order: The nodes between the region's inputs and its outputs.
        leaves: Inputs of the region: a tensor without memory for each, or a constant.
        tied: For each leaf, the first one that is the same parameter or buffer.
        text: Key of the region: the digest of its program, and its operators.
        deadline: Deadline of its evaluations, which raise ``DeadlineReachedError``.
        drawn: Generated tensors with torch's results, by style and seed, which all candidates are compared on.
        earlier: Generated tensors of the import's comparison, which candidates are compared on first.
        refused: Candidates that break the contract, and how.
    """

    def __init__(self, imported: Imported, number: int, deadline: Deadline = NO_DEADLINE) -> None:
        self.deadline = deadline
        self.drawn: dict[tuple[str, int], tuple[Any, Any]] = {}
        self.earlier: list[GeneratedSet] = []
        self.refused: dict[KernelGraph, str] = {}
        self._seconds = 0.0
        self.region: Region = imported.regions[number]
        self.nodes: dict[str, Node] = {node.name: node for node in imported.module.graph.nodes}
        read = {item.node for item in self.region.inputs}
        outputs = [output.node for output in self.region.outputs]
        placeholders = {name for name, node in self.nodes.items() if node.op != "call_function"}
        self.order = [n for n in nodes_between(list(self.nodes.values()), outputs, read) if n.name not in placeholders]
        inside = {node.name for node in self.order}
        leaves = {n.name: n for node in self.order for n in node.all_input_nodes if n.name not in inside}
        self.constants: dict[str, Any] = {}
        self.leaves: dict[str, Any] = {}
        for name in sorted({*leaves, *read}):
            if self._is_fixed(imported, name, read):
                self.constants[name] = imported.given[name].detach()
            else:
                self.leaves[name] = self.nodes[name].meta["val"]
        first: dict[int, str] = {}
        state = {name: imported.given[name] for name in self.leaves if name in imported.given}
        self.tied = {name: first.setdefault(id(tensor), name) for name, tensor in state.items()}
        self.reference = NodeEvaluator(self.order, outputs, deadline)
        self.text = (self.region.digest, _operators_text(self.order, {**self.leaves, **self.constants}))

    def _is_fixed(self, imported: Imported, name: str, read: Collection[str]) -> bool:
        """Return whether a leaf keeps its value in all comparisons, and is not drawn at random.

        These are constants that the import creates, and constants of the module that the program does not read, have no
        dims, or have integer elements.
        """
        if name not in self.nodes:
            return True
        constant = imported.arguments.get(name) == "constant" and name in imported.given
        return constant and (name not in read or _is_part_of_computation(imported.given[name]))

    def draw(self, style: str, seed: int) -> dict[str, Any]:
        """Return generated tensors for the leaves; leaves that are the same parameter share one."""
        with limit_threads(self.work):
            leaves = draw_tensors(self.leaves, style, seed)
        return leaves | {name: leaves[one] for name, one in self.tied.items() if one in leaves}

    @property
    def drawable(self) -> bool:
        """Return whether all leaves are of types that can be generated: floating-point numbers or masks."""
        return all(x.is_floating_point() or x.dtype is torch.bool for x in self.leaves.values())

    @property
    def program(self) -> KernelGraph:
        """Return the region's program."""
        return self.region.program

    @cached_property
    def elements(self) -> int:
        """Return the number of elements of all tensors of the program and of the nodes."""
        own = sum(prod(tensor.shape) for tensor in kernel_types(self.program))
        values = (x for node in self.order for x in torch.utils._pytree.tree_leaves(node.meta.get("val")))
        return own + sum(int(x.numel()) for x in values if isinstance(x, torch.Tensor))

    @cached_property
    def products(self) -> int:
        """Return the number of multiplications of the program's matrix products."""
        types = kernel_types(self.program)
        number, count = len(self.program.inputs), 0
        for op in self.program.ops:
            if isinstance(op, Op) and op.kind is OpKind.MATMUL:
                count += prod(types[op.operands[0]].shape) * types[number].shape[-1]
            number += op.results
        return count

    @cached_property
    def work(self) -> int:
        """Return the cost of one evaluation, in elements; 16 multiplications count as one element."""
        return max(1, self.elements + self.products // 16)

    @property
    def affordable(self) -> bool:
        """Return whether the region is small enough to be evaluated."""
        return self.elements <= MOST_ELEMENTS and self.products <= MOST_PRODUCTS

    @property
    def size(self) -> str:
        """Return the size of the region as text for a report."""
        return f"{self.elements / 1e6:.3g} million elements and {self.products / 1e9:.3g} billion products"

    def expected(self, leaves: Mapping[str, Any]) -> dict[str, ExpectedResult]:
        """Return the expected values of each output, computed by torch.

        Raises:
            RuntimeError: Torch refuses the tensors.
            DeadlineReachedError: The deadline has come, or comes before the next evaluation can end.
        """
        given = {**self.constants, **leaves}
        samples = _SAMPLES if self.work <= _SMALL else _FEWER if self.work > _LARGE else _SAMPLES // 2
        run, exactly = self._evaluation, self.reference.exact
        with torch.no_grad():
            own = run(partial(self.reference.own, given))
            exact = run(partial(exactly, given))
            moved = [run(partial(exactly, given, seed, poisoned=seed != 2)) for seed in range(1, samples + 1)]
            if self.reference.rounds:
                moved.append(run(partial(exactly, given, decided=False)))
            if self.reference.decides:
                moved.append(run(partial(exactly, given, decided=False, stored=True)))
        self.reference.forget()
        return {name: ExpectedResult(own[name], exact[name], [one[name] for one in moved]) for name in own}

    def _evaluation(self, evaluate: Callable[[], _T]) -> _T:
        """Return the result of one evaluation of the region, which has to end by the deadline.

        It is expected to take as long as the one before.
        """
        self.deadline.check(max(self._seconds, self.work / _FASTEST))
        begin = now()
        with limit_threads(self.work):
            found = evaluate()
        self._seconds = now() - begin
        return found

    def results(self, leaves: Mapping[str, Any], evaluate: _Evaluator | None = None) -> dict[str, Any]:
        """Return the outputs of the program, from given tensors of the region's leaves.

        Args:
            leaves: The tensors by name.
            evaluate: Evaluator of a candidate. Without one the program is evaluated in its own element types, with
                unrounded intermediates as in registers.
        """
        tensors = self.region.read({**self.constants, **leaves})
        if evaluate is None:
            inputs = enumerate(zip(self.program.inputs, tensors, strict=True))
            exact = {n for n, (item, tensor) in inputs if tensor.dtype is getattr(torch, item.tensor.dtype.value, None)}
            evaluate = partial(run_typed, self.program, stored=False, exact=exact)
        with limit_threads(self.work):
            arrays = [np.asarray(tensor.detach().cpu().float().numpy()) for tensor in tensors]
        found = [torch.from_numpy(np.array(array, order="C")) for array in self._evaluation(partial(evaluate, arrays))]
        return {output.node: output.present(found) for output in self.region.outputs}

    def differences(
        self, leaves: Mapping[str, Any], expected: Mapping[str, ExpectedResult], evaluate: _Evaluator | None = None
    ) -> Iterator[tuple[str, Difference]]:
        """Yield each output that breaks the contract, with its difference; arguments as for ``results``."""
        results = self.results(leaves, evaluate)
        for output in self.region.outputs:
            wanted = expected[output.node]
            with limit_threads(_JUDGED * wanted.own.numel()):
                here = ExpectedResult(wanted.own.cpu(), wanted.exact.cpu(), [one.cpu() for one in wanted.moved])
                found = difference(results[output.node], here)
            if found is not None:
                yield output.node, found


def _operators_text(order: Sequence[Node], leaves: Mapping[str, Any]) -> str:
    """Return the text of the nodes' operators, independent of node names."""
    names = {name: f"x{i}" for i, name in enumerate(leaves)} | {node.name: f"t{i}" for i, node in enumerate(order)}
    rows = [f"{tuple(x.shape)} {tuple(x.stride())} {x.dtype} {x.device}" for x in leaves.values()]
    for node in order:
        args = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda n: names[n.name])
        rows.append(f"{node.target} {args}")
    return "\n".join(rows)


def _values_of_call(
    imported: Imported, pieces: Mapping[int, RegionPiece], values: Mapping[str, Any], deadline: Deadline
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number of each region with the tensors that it reads in the call that a module was imported with.

    Torch computes the module's graph once, as far as regions need it, and frees tensors after their last use. Operators
    that are not ATen's, and those that write, are not called; regions that depend on them are not yielded.
    """
    wanted: dict[str, set[int]] = {}
    for number, piece in pieces.items():
        for name in piece.leaves:
            wanted.setdefault(name, set()).add(number)
    nodes = list(imported.module.graph.nodes)
    order = nodes_between(nodes, list(wanted), ())
    last = {read.name: node.name for node in order for read in node.all_input_nodes}
    known = {name: x for name, x in {**imported.given, **values}.items() if _has_values(x)}
    kept: dict[int, dict[str, Any]] = {number: {} for number in pieces}
    devices = sorted({x.device.index for x in known.values() if x.is_cuda})
    with torch.no_grad(), torch.random.fork_rng(devices):
        for node in order:
            deadline.check()
            if node.op == "call_function" and all(n.name in known for n in node.all_input_nodes) and _is_pure(node):
                args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda n: known[n.name])
                try:
                    known[node.name] = node.target(*args, **kwargs)
                except RuntimeError:  # such as out of memory: its regions use generated sets
                    continue
            for number in sorted(wanted.get(node.name, ())):
                if node.name in known:
                    kept[number][node.name] = known[node.name].detach()
                if kept[number].keys() == pieces[number].leaves.keys():
                    yield number, kept.pop(number)
                    wanted = {name: some - {number} for name, some in wanted.items()}
            for read in node.all_input_nodes:
                if last[read.name] == node.name and read.name not in imported.given:
                    known.pop(read.name, None)


def _is_pure(node: Node) -> bool:
    """Return whether a node may be called again: it has no side effects."""
    if node.target is operator.getitem:
        return True
    own = isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in ("aten", "prims")
    return own and not node.target._schema.is_mutable


def _is_part_of_computation(x: Any) -> bool:
    """Return whether a constant is part of the computation: a number, or integers such as indices."""
    return not x.dim() or not (x.is_floating_point() or x.dtype is torch.bool)


def _has_values(x: Any) -> bool:
    plain = type(x) in (torch.Tensor, torch.nn.Parameter)
    return plain and not x.is_meta


# --- the smallest operator that differs ------------------------------------------------------------------------------


def locate_fault(piece: RegionPiece, leaves: Mapping[str, Any], name: str) -> ImportFault | None:
    """Return the smallest operator of a region that differs on these tensors.

    Args:
        piece: The region.
        leaves: Tensors on which it differs.
        name: Name of the set of these tensors.

    Returns:
        The first operator whose result differs if every result of the region is an output; None if none does.
    """
    given = {**piece.constants, **leaves}
    with torch.no_grad():
        values = {**given, **NodeEvaluator(piece.order, [node.name for node in piece.order], piece.deadline).own(given)}
    found = _first_difference(piece.order, values, piece.deadline)
    if found is None:
        return None
    node = _producer(piece.nodes[found[0]])
    part = [node, *(user for user in piece.order if user.target is operator.getitem and user.args[0] is node)]
    single = _first_difference(part, values, piece.deadline)
    return _fault(piece, node.name, name, (single or found)[1], alone=single is not None)


def _producer(node: Node) -> Node:
    """Return the operator that computes a node, which may be a ``getitem`` of it."""
    return node.args[0] if node.target is operator.getitem else node


def _first_difference(
    nodes: Sequence[Node], values: Mapping[str, Any], deadline: Deadline
) -> tuple[str, Difference] | None:
    """Return the first result of some nodes that differs where these are imported by themselves."""
    try:
        found = import_of(extract_nodes(nodes, values))
    except MirageError:
        return None
    place = {node.name: i for i, node in enumerate(nodes)}
    differing: list[tuple[str, Difference]] = []
    for number in range(len(found.regions)):
        piece = RegionPiece(found, number, deadline)
        leaves = {name: values[name] for name in piece.leaves if name in values}
        if leaves.keys() == piece.leaves.keys():
            try:
                differing += piece.differences(leaves, piece.expected(leaves))
            except RuntimeError:
                continue
    return min(differing, key=lambda pair: place[pair[0]], default=None)


def extract_nodes(nodes: Sequence[Node], values: Mapping[str, Any]) -> CapturedGraph:
    """Return some nodes as a graph of their own, with all results that are of a type that programs have.

    Args:
        nodes: The nodes, in order.
        values: Tensors of the nodes that they read.
    """
    graph = Graph()
    known: dict[str, Node] = {}
    inside = {node.name for node in nodes}
    for read in {n.name: n for node in nodes for n in node.all_input_nodes if n.name not in inside}.values():
        known[read.name] = graph.placeholder(read.name)
        known[read.name].meta = dict(read.meta)
    for node in nodes:
        known[node.name] = graph.node_copy(node, lambda n: known[n.name])
    made = ((node.name, node.meta.get("val")) for node in nodes)
    results = [name for name, x in made if isinstance(x, torch.Tensor) and x.is_floating_point()]
    graph.output(tuple(known[name] for name in results))
    numbers = {
        name for name, node in known.items() if node.op == "placeholder" and _is_part_of_computation(values[name])
    }
    arguments = {n: "constant" if n in numbers else f"argument {n}" for n, o in known.items() if o.op == "placeholder"}
    given = {name: values[name] for name in numbers}
    return CapturedGraph(GraphModule(torch.nn.Module(), graph), arguments, given, {}, tuple(results), ())


__all__ = [
    "GIVEN",
    "GeneratedSet",
    "ImportComparison",
    "ImportFault",
    "RegionPiece",
    "arguments_of",
    "compare_with_torch",
    "extract_nodes",
    "locate_fault",
]
