"""Subgraphs of a graph: extraction as graphs of their own, and composition of their replacements.

It is independent of the code that partitions a program for its searches and stitches a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mirage_formal.check.check_steps import expect_equal
from mirage_formal.check.equivalence import MixedRadixObligation, replay_with_obligations
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.graph import Input, KernelGraph, KernelOp, enumerate_results
from mirage_formal.graph.types import DTensor, row_major
from mirage_formal.graph.verifier import faults, kernel_types, output_types
from mirage_formal.support.errors import FormatError


@dataclass(frozen=True, slots=True)
class ExtractedPart:
    """A subgraph, extracted as a graph of its own.

    Attributes:
        program: Its operators as a graph of their own.
        reads: For each input of ``program``, the tensor of the original graph.
        results: For each output of ``program``, the tensor of the original graph, which is used outside.
    """

    program: KernelGraph
    reads: tuple[int, ...]
    results: tuple[int, ...]


def partition(graph: KernelGraph, parts: Sequence[Sequence[int]]) -> tuple[ExtractedPart, ...]:
    """Extract the subgraphs of a partition of a graph.

    Sound: every operator is in one part and no more; a part reads only inputs of the graph and results of earlier
    parts.

    Args:
        graph: A well-formed graph.
        parts: For each part the numbers of its operators, ascending.

    Raises:
        FormatError: It is no such partition.
    """
    expect_equal("operators of all parts", list(range(len(graph.ops))), sorted(n for part in parts for n in part))
    known = set(range(len(graph.inputs)))
    pieces: list[ExtractedPart] = []
    extract = _Extraction(graph)
    for number, part in enumerate(parts, 1):
        piece = extract.part(part)
        if not known.issuperset(piece.reads):
            raise FormatError(f"part {number}: expected to read inputs and results of earlier parts, got {piece.reads}")
        known.update(piece.results)
        pieces.append(piece)
    return tuple(pieces)


def extract_operators(graph: KernelGraph, operators: Sequence[int]) -> ExtractedPart:
    """Extract operators as a graph whose outputs are their results that are used outside, or the last result.

    Sound: whatever else is computed from the part reads one of these, for they are all that others may read.

    Raises:
        FormatError: The operators are not in ascending order.
    """
    return _Extraction(graph).part(operators)


class _Extraction:
    """Extraction of parts of one graph."""

    def __init__(self, graph: KernelGraph) -> None:
        self._graph, self._types = graph, kernel_types(graph)
        self._makers = list(enumerate_results(len(graph.inputs), graph.ops))
        self._readers: list[set[int]] = [set() for _ in self._types]  # numbers of operators, -1 for an output
        for n, operands in (*((n, op.operands) for n, op in enumerate(graph.ops)), (-1, graph.outputs)):
            for tensor in operands:
                self._readers[tensor].add(n)

    def part(self, operators: Sequence[int]) -> ExtractedPart:
        """Implement ``extract_operators``."""
        expect_equal("order of operators", sorted(operators), list(operators))
        own: dict[int, int] = {}  # tensors of the graph to tensors of the part; its inputs are counted down from -1
        reads: list[int] = []
        made: list[int] = []
        ops: list[KernelOp] = []
        for n in operators:
            first, op = self._makers[n]
            for tensor in op.operands:
                if tensor not in own:
                    reads.append(tensor)
                    own[tensor] = -len(reads)
            ops.append(replace(op, operands=tuple(own[tensor] for tensor in op.operands)))
            for tensor in range(first, first + op.results):
                own[tensor] = len(made)
                made.append(tensor)
        count, inside = len(reads), set(operators)
        placed = (replace(op, operands=tuple(-1 - i if i < 0 else count + i for i in op.operands)) for op in ops)
        given = tuple(_input(self._graph, self._types, i, tensor) for i, tensor in enumerate(reads))
        results = tuple(tensor for tensor in made if not self._readers[tensor] <= inside) or (made[-1],)
        program = KernelGraph(given, tuple(placed), tuple(count + own[tensor] for tensor in results))
        return ExtractedPart(program, tuple(reads), results)


def _input(graph: KernelGraph, types: Sequence[DTensor], number: int, tensor: int) -> Input:
    """Return a tensor of the graph as an input of a subgraph."""
    given = tensor < len(graph.inputs)
    return Input(f"x{number}", types[tensor], graph.inputs[tensor].strides if given else row_major(types[tensor].shape))


@dataclass(frozen=True, slots=True)
class PartPlace:
    """Where a part's replacement is in a composed graph.

    Attributes:
        kernels: Numbers of the composed graph's operators that are the replacement's.
        inputs: For each input of the replacement, the tensor of the composed graph that it reads.
        outputs: For each output, the tensor of the composed graph.
    """

    kernels: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def place_parts(
    graph: KernelGraph, pieces: Sequence[ExtractedPart], graphs: Sequence[KernelGraph]
) -> tuple[KernelGraph, tuple[PartPlace, ...]]:
    """Compose the replacements of the subgraphs to one graph over the inputs of the graph; say where each is in it.

    Sound: operand i of an operator of a part's graph is the tensor that stands for the part's tensor i, and output i of
    the graph stands for result i of the part.
    """
    tensors = len(graph.inputs)
    stands: dict[int, int] = {i: i for i in range(tensors)}
    ops: list[KernelOp] = []
    places: list[PartPlace] = []
    for piece, part in zip(pieces, graphs, strict=True):
        first = len(ops)
        local = {i: stands[tensor] for i, tensor in enumerate(piece.reads)}
        inputs = tuple(local.values())
        for op in part.ops:
            ops.append(replace(op, operands=tuple(local[i] for i in op.operands)))
            for _ in range(op.results):
                local[len(local)] = tensors
                tensors += 1
        outputs = tuple(local[output] for output in part.outputs)
        stands |= dict(zip(piece.results, outputs, strict=True))
        places.append(PartPlace(tuple(range(first, len(ops))), inputs, outputs))
    whole = KernelGraph(graph.inputs, tuple(ops), tuple(stands[tensor] for tensor in graph.outputs))
    return whole, tuple(places)


def compose(graph: KernelGraph, pieces: Sequence[ExtractedPart], graphs: Sequence[KernelGraph]) -> KernelGraph:
    """Replace the parts of a graph by other graphs, as ``place_parts``, and return the composed graph only."""
    return place_parts(graph, pieces, graphs)[0]


@dataclass(frozen=True, slots=True)
class EqualPart:
    """A graph that computes a subgraph, or a whole program, wherever its conditions hold.

    Attributes:
        graph: The graph.
        conditions: Side conditions of both.
        added: Those of them that the subgraph's own operators do not need.
    """

    graph: KernelGraph
    conditions: tuple[str, ...]
    added: tuple[str, ...]


def compose_equal_parts(graph: KernelGraph, pieces: Sequence[ExtractedPart], parts: Sequence[EqualPart]) -> EqualPart:
    """Compose graphs that compute the subgraphs of a partition to one that computes the graph.

    Sound: by induction over the parts. On equal tensors each graph yields the tensors that its part yields, wherever
    its conditions hold; the whole is these graphs one after another, and its conditions are those of all parts, about
    the tensors that they read, which are the given graph's.

    Args:
        graph: A well-formed graph.
        pieces: Its subgraphs, from ``partition``.
        parts: What takes the place of each.

    Raises:
        FormatError: The composed graph has outputs of other types.
    """
    together = compose(graph, pieces, [part.graph for part in parts])
    expect_equal("outputs", output_types(graph), output_types(together))
    conditions, added = (
        tuple(dict.fromkeys(f"part {number}: {one}" for number, texts in enumerate(each, 1) for one in texts))
        for each in ([part.conditions for part in parts], [part.added for part in parts])
    )
    return EqualPart(together, conditions, added)


@dataclass(frozen=True, slots=True)
class Replacement:
    """Replacement of a subgraph by another graph, with a proof.

    Attributes:
        graph: The other graph, over the subgraph's inputs.
        proof: Proof that it computes the subgraph's results.
    """

    graph: KernelGraph
    proof: bytes


@dataclass(frozen=True, slots=True)
class ReplacedGraph:
    """A graph that is equal to another one part by part, given that the obligations are unsatisfiable.

    Attributes:
        graph: The composed graph.
        conditions: Side conditions of the replaced parts and their replacements, each with the number of its part from
            1: the equality holds wherever these hold.
        added: Those that the parts do not have.
        doubtful: Whether some condition is not always true by its form.
        obligations: Distinct obligations of all proofs.
    """

    graph: KernelGraph
    conditions: tuple[str, ...]
    added: tuple[str, ...]
    doubtful: bool
    obligations: tuple[MixedRadixObligation, ...]


def replace_parts(graph: KernelGraph, parts: Sequence[tuple[Sequence[int], Replacement | None]]) -> ReplacedGraph:
    """Return a graph with some parts replaced, after replay of the replacements' proofs.

    Sound: by induction over the parts, see ``partition`` and ``compose``. A part without another graph stays as it is;
    of any other the kernel replays a proof that, on all inputs where the conditions hold, its outputs are the part's.
    So every tensor that a part hands on is equal to the given graph's, and so are the outputs.

    Args:
        graph: A well-formed graph.
        parts: The operators of each part and its replacement, in topological order.

    Raises:
        FormatError: The parts are no partition, or a replacement has another interface.
        ProofError: A proof is not one; ``where`` names the part, and the lemma or step at fault.
    """
    pieces = partition(graph, [operators for operators, _ in parts])
    graphs: list[KernelGraph] = []
    held: dict[str, None] = {}
    added: dict[str, None] = {}
    obligations: dict[MixedRadixObligation, None] = {}
    doubtful = False
    for number, (piece, (_, other)) in enumerate(zip(pieces, parts, strict=True), 1):
        graphs.append(piece.program if other is None else other.graph)
        if other is None:
            continue
        if found := faults(other.graph):
            raise FormatError(f"part {number}: {'; '.join(found)[:600]}")
        expect_equal(f"part {number}: inputs", piece.program.inputs, other.graph.inputs)
        expect_equal(f"part {number}: outputs", output_types(piece.program), output_types(other.graph))
        try:
            shown = replay_with_obligations(piece.program, other.graph, other.proof)
        except ProofError as error:
            raise ProofError(error.what, f"part {number}, {error.where}") from error
        held |= dict.fromkeys(f"part {number}: {one}" for one in shown.conditions)
        added |= dict.fromkeys(f"part {number}: {one}" for one in shown.added)
        obligations |= dict.fromkeys(shown.obligations)
        doubtful = doubtful or shown.doubtful
    together = compose(graph, pieces, graphs)
    return ReplacedGraph(together, tuple(held), tuple(added), doubtful, tuple(obligations))


__all__ = [
    "EqualPart",
    "ExtractedPart",
    "PartPlace",
    "ReplacedGraph",
    "Replacement",
    "compose",
    "compose_equal_parts",
    "extract_operators",
    "partition",
    "place_parts",
    "replace_parts",
]
