"""Exact equivalence of two programs over the reals, with a proof object that ``check`` replays.

Both programs are interpreted in the index-exact domain (``exact_domain.py``). The elements of their outputs are then
normal forms over the same digits. Equal normal forms, or quotients that cross-multiply to equal ones, are a proof. No
number is ever evaluated, so the answer holds for all inputs on which the side conditions hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

from msgspec import Struct, structs

from mirage_formal.graph.edit import eliminate_dead_code, renumber
from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.graph import KernelGraph, KernelOp, Op, enumerate_results, operators
from mirage_formal.graph.ops import MOVES, Attrs, OpKind
from mirage_formal.graph.remainder_tiles.padded_extents import decompose_remainder_tiles
from mirage_formal.graph.remainder_tiles.split import BoundaryOperators, split_pads_and_slices
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.prove.equality.element_forms import equal_in_cases
from mirage_formal.prove.equality.exact_domain import ExactDomain, TensorCut, TensorGrid, UndefinedPiece
from mirage_formal.prove.equality.polynomials import Monomial, ProofIncomplete, multiplier
from mirage_formal.prove.equality.proof_writer import ClosingLine, write_proof
from mirage_formal.prove.equality.radicals import SquareRoots
from mirage_formal.prove.equality.tensor_terms import TensorTerm, TensorTerms
from mirage_formal.support.errors import GraphError

#: The most rounds in which roots are rewritten.
_ROUNDS: Final = 4


class FinalIdentity(Struct, frozen=True):
    """A final identity: two tensors that should be equal, as step numbers, with the multiplier that shows it.

    Attributes:
        program: Step of the program's output, or of a piece of it; None if it has no exact terms.
        candidate: Step of the candidate's output or piece; likewise.
        multiplier: Divisors whose product with the difference is 0; None if none were found.
        masks: The masks whose cases show it.
        uses: The lemmas that these cases use.
    """

    program: int | None
    candidate: int | None
    multiplier: Monomial | None
    masks: tuple[int, ...] = ()
    uses: frozenset[int] = frozenset()

    @property
    def same(self) -> bool:
        """Return whether both are one tensor, so that no identity is needed."""
        return self.program is not None and self.program == self.candidate

    @property
    def line(self) -> ClosingLine | None:
        """Return the entry of the proof's outputs; None if both are one tensor, or the equality is not shown."""
        if self.same or self.program is None or self.candidate is None or self.multiplier is None:
            return None
        return self.program, self.candidate, self.multiplier, self.masks


class Derivation(Struct, frozen=True):
    """The normal forms of all outputs of two programs, with the steps and lemmas that led to them.

    Attributes:
        tensors: The terms, steps and lemmas.
        closings: The final identities.
        inputs: The number of inputs of the programs.
        atoms: For each atom the graph, the tensor and the piece; they are numbered after the inputs.
        cut: Tensors of the kernel graphs that are concatenations: the graph and the tensor.
        whole: Whether these are atoms.
        segments: Axes of tensors that were cut to segments.
        signed: Inputs whose sign was used: a side condition says that they are not negative.
        more: Axes of tensors that could be cut: where the graphs slice them, or tensors with the same value.
        reasons: The reasons for atoms.
        unnested: Whether digits did not nest.
    """

    tensors: TensorTerms
    closings: tuple[FinalIdentity, ...]
    inputs: int
    atoms: tuple[tuple[int, int, int], ...]
    cut: tuple[tuple[int, int], ...]
    whole: bool
    segments: tuple[TensorCut, ...]
    signed: tuple[int, ...]
    more: tuple[TensorCut, ...]
    reasons: tuple[str, ...]
    unnested: bool

    @property
    def shown(self) -> bool:
        """Return whether the derivation proves all outputs of the two programs equal."""
        return all(closing.multiplier is not None for closing in self.closings)

    def needed_steps(self) -> list[int]:
        """Return the steps that the closings depend on, in order."""
        roots = (n for closing in self.closings if closing.line is not None for n in closing.line[:2])
        return _reachable(roots, lambda n: self.tensors.steps[n].operands)

    def needed_lemmas(self) -> list[int]:
        """Return the lemmas that those steps, and the closings, depend on, in order."""
        used = [self.tensors.steps[step].uses for step in self.needed_steps()]
        used += [closing.uses for closing in self.closings if closing.line is not None]
        roots = (n for uses in used for n in uses)
        return _reachable(roots, lambda n: self.tensors.lemmas[n].uses)


def prove(program: KernelGraph, candidate: KernelGraph, via: Sequence[KernelGraph] = ()) -> Equivalent | Unknown:
    """Prove that a candidate computes the same as the program, for all inputs.

    Sound: Equivalent is answered only when every output element's normal form is the same, or differs by a multiple of
    zero after multiplication with divisors; or when that holds of two halves (``graph.remainder_tiles``,
    ``_prove_between_moves``), which together say it. Whatever stops the procedure gives Unknown with the reason.

    Args:
        program: The program.
        candidate: The candidate.
        via: Other graphs that compute the same as the program; one may move elements of its inputs as the candidate
            does.

    Raises:
        GraphError: A graph is not well-formed, or the two have other inputs or outputs.
    """
    _same_interface(program, candidate)
    # First, because it shows the kernels' requirements on elements beyond the end of an input.
    composed = _compose_halves(program, candidate)
    if composed is not None:
        return composed
    direct = derive(program, candidate)[1]
    if isinstance(direct, Equivalent) or (parts := split_pads_and_slices(candidate, moves=True)) is None:
        return direct
    tried = (_prove_between_moves(program, parts, other) for other in (program, *via))
    return next((found for found in tried if found is not None), direct)


#: Half of a proof: its subject in words, a program and a candidate.
Half = tuple[str, KernelGraph, KernelGraph]


def split_proof_obligation(program: KernelGraph, candidate: KernelGraph) -> tuple[Half, ...]:
    """Return the two proof obligations of a candidate with remainder tiles (``graph.remainder_tiles``), or none."""
    found = decompose_remainder_tiles(program, candidate)
    if found is None:
        return ()
    return (
        ("the kernels, at the padded extents", found.program, found.candidate),
        ("the program's operators at the padded extents, between pads and slices", program, found.padded),
    )


def _compose_halves(program: KernelGraph, candidate: KernelGraph) -> Equivalent | None:
    """Return a proof in two halves; None if there is none."""
    parts = split_proof_obligation(program, candidate)
    proofs: list[str] = []
    for _, mine, theirs in parts:
        try:
            found = derive(mine, theirs)[1]
        except GraphError:  # extents that do not fit
            return None
        if isinstance(found, Unknown):
            return None
        proofs.append(found.proof.decode())
    return Equivalent(json.dumps([to_json(parts[0][1]), *proofs]).encode()) if parts else None


def _prove_between_moves(
    program: KernelGraph, parts: tuple[BoundaryOperators, KernelGraph], via: KernelGraph
) -> Equivalent | None:
    """Return a proof of the operators between data movements, and of the program around them; None if there is none.

    Sound: ``via`` only says what to try; see ``check.proof_composition`` for why the two proofs say that the candidate
    is equal.

    Args:
        program: The program.
        parts: The candidate, split into data movements and inner graph.
        via: A graph over the program's inputs whose operators between the candidate's moves are tried as the middle.
    """
    wrapping, inner = parts
    middle = _middle_graph(wrapping, inner, via)
    if middle is None:
        return None
    try:
        halves = [derive(middle, inner)[1], derive(program, wrapping.around(program.inputs, middle))[1]]
    except GraphError:  # results of other shapes
        return None
    proofs = [half.proof.decode() for half in halves if isinstance(half, Equivalent)]
    return Equivalent(json.dumps([to_json(middle), *proofs, "moves"]).encode()) if len(proofs) == len(halves) else None


def _middle_graph(wrapping: BoundaryOperators, inner: KernelGraph, via: KernelGraph) -> KernelGraph | None:
    """Return the operators of a graph between some data movements, as a graph of the inner inputs.

    It begins at tensors that are made from the inputs by the same moves, and ends where the same moves make the
    outputs. None if the graph has other moves.
    """
    count = len(via.inputs)
    reads = {
        way: i for i, way in enumerate(_number_derivations(_derivations(range(count), wrapping.front), wrapping.reads))
    }
    makers = dict(enumerate_results(count, via.ops))
    found = _derivations(range(count), via.ops)
    number: dict[int, int] = {}
    for n, way in zip(found, _number_derivations(found, found), strict=True):
        place = reads.get(way, reads.get((*way[:-1], 0)))
        if place is not None:
            number[n] = place
    ops, last = list[KernelOp](), len(inner.inputs)
    for first, op in makers.items():
        if first not in number and all(n in number for n in op.operands):
            ops.append(renumber(op, number))
            number.update((first + r, last + r) for r in range(op.results))
            last += op.results
    ends: dict[int, int] = {}
    pairs = list(zip(wrapping.outputs, via.outputs, strict=True))
    while pairs:
        at, n = pairs.pop()
        if at < len(inner.outputs):
            ends.setdefault(at, n)
            continue
        move, own = wrapping.back[at - len(inner.outputs)], makers.get(n)
        if not isinstance(own, Op) or (own.kind, own.attrs) != (move.kind, move.attrs):
            return None
        if len(own.operands) != len(move.operands):
            return None
        pairs += zip(move.operands, own.operands, strict=True)
    if len(ends) < len(inner.outputs) or any(n not in number for n in ends.values()):
        return None
    return eliminate_dead_code(
        KernelGraph(inner.inputs, tuple(ops), tuple(number[ends[n]] for n in range(len(inner.outputs))))
    )


#: The derivation of a tensor by moves: the input, the moves, and its rank among tensors with the same ones.
_Way = tuple[int | OpKind | Attrs, ...]


def _derivations(inputs: Iterable[int], ops: tuple[KernelOp, ...]) -> dict[int, _Way]:
    """Return the derivations of inputs, and of tensors that moves make of one input, by tensor number."""
    made: dict[int, _Way] = {n: (n,) for n in inputs}
    for first, op in enumerate_results(len(made), ops):
        if isinstance(op, Op) and op.kind in MOVES and len(op.operands) == 1 and op.operands[0] in made:
            made[first] = (*made[op.operands[0]], op.kind, op.attrs)
    return made


def _number_derivations(made: Mapping[int, _Way], tensors: Iterable[int]) -> Iterator[_Way]:
    """Yield the derivation of each tensor, with the number of earlier tensors that have the same derivation."""
    seen = Counter[_Way]()
    for n in tensors:
        yield (*made[n], seen[made[n]])
        seen[made[n]] += 1


def derive(program: KernelGraph, candidate: KernelGraph) -> tuple[Derivation, Equivalent | Unknown]:
    """Return the normal forms of both programs' outputs, and the verdict that they prove; see ``prove``.

    Roots are rewritten if their radicands turn out to share divisors. If the pieces of a concatenation do not lead to a
    proof, as in a loop over them, the concatenation is treated as one atom. If one graph slices a tensor, another
    attempt takes it in both graphs as the concatenation of its slices; if one takes the root or the logarithm of an
    input, another attempt uses that the input is not negative; and if digits do not nest, one names elements of inputs
    by their number.

    Raises:
        GraphError: A graph is not well-formed, or the two have other inputs or outputs.
    """
    _same_interface(program, candidate)
    derivation = _derive_refined(program, candidate, whole=False)
    signed = () if derivation.shown else _nonnegative_inputs(program, candidate)
    if signed:
        other = _derive_refined(program, candidate, whole=False, signed=signed)
        derivation = other if other.shown else derivation
    if derivation.more and not derivation.shown:
        other = _derive_refined(program, candidate, whole=False, cuts=derivation.more, signed=signed)
        # An atom is a piece of a tensor before it is cut.
        atoms = {atom[:2] for atom in other.atoms}
        derivation = other if other.shown and atoms.isdisjoint(row[:2] for row in other.segments) else derivation
    if derivation.unnested and not derivation.shown:
        other = _derive_refined(program, candidate, whole=False, flat=True)
        derivation = other if other.shown else derivation
    if derivation.cut and not derivation.shown:
        other = _derive_refined(program, candidate, whole=True)
        derivation = other if other.shown else derivation
    return derivation, _write_verdict(derivation)


def _derive_refined(
    program: KernelGraph,
    candidate: KernelGraph,
    *,
    whole: bool,
    cuts: tuple[TensorCut, ...] = (),
    signed: tuple[int, ...] = (),
    flat: bool = False,
) -> Derivation:
    radicals: SquareRoots | None = SquareRoots(_numbers(program, candidate))
    domain = partial(ExactDomain, whole=whole, cuts=cuts, signed=signed, flat=flat)
    derivation = _derive(program, candidate, domain(radicals), cuts, signed)
    for _ in range(_ROUNDS):
        radicals = derivation.tensors.radicals.refined()
        if radicals is None or all(closing.same for closing in derivation.closings):
            break
        derivation = _derive(program, candidate, domain(radicals), cuts, signed)
    return structs.replace(derivation, whole=whole, more=() if whole or cuts else derivation.more)


def _nonnegative_inputs(*graphs: KernelGraph) -> tuple[int, ...]:
    """Return the inputs whose root or logarithm a graph takes, so that a side condition says their sign."""
    return tuple(
        sorted(
            {
                op.operands[0]
                for graph in graphs
                for op in graph.ops
                if isinstance(op, Op) and op.kind in (OpKind.SQRT, OpKind.LOG) and op.operands[0] < len(graph.inputs)
            }
        )
    )


def _numbers(*graphs: KernelGraph) -> set[int]:
    """Return the numerators and denominators of the constants in programs, which are likely radicands."""
    found: set[int] = set()
    for graph in graphs:
        for op in operators(graph):
            constants = (op.attrs.factor, op.attrs.eps, op.attrs.shift, op.attrs.value)
            found.update(n for c in constants if c for n in (abs(c.numerator), c.denominator))
    return found


def _write_verdict(derivation: Derivation) -> Equivalent | Unknown:
    """Return the proof if the normal forms are one, else Unknown."""
    try:
        if not derivation.shown:
            return Unknown("; ".join(("the normal forms differ", *derivation.reasons[:1])))
        steps, lemmas = derivation.needed_steps(), derivation.needed_lemmas()
        outputs = [closing.line for closing in derivation.closings]
        atoms = (*derivation.atoms, *(derivation.cut if derivation.whole else ()), *derivation.segments)
        atoms = (*atoms, *((number,) for number in derivation.signed))
        return Equivalent(write_proof(derivation.tensors, steps, lemmas, outputs, derivation.inputs, atoms))
    except ProofIncomplete as reason:
        return Unknown(str(reason))
    except RecursionError:
        return Unknown("the terms are nested too deeply")


def _slices(domain: ExactDomain, *graphs: KernelGraph) -> Iterator[TensorCut]:
    """Yield the axes of tensors, in both graphs, at whose values one of the graphs takes slices."""
    ends: dict[tuple[int, int], set[int]] = {}
    for number, graph in enumerate(graphs):
        for op in graph.ops:
            if isinstance(op, Op) and op.kind is OpKind.SLICE:
                assert op.attrs.dim is not None
                found = ends.setdefault((domain.value_names[number, op.operands[0]], op.attrs.dim), set())
                found.update((op.attrs.start or 0, op.attrs.stop or 0))
    types = [kernel_types(graph) for graph in graphs]
    for (number, tensor), name in domain.value_names.items():
        extents = types[number][tensor].shape
        for axis, extent in enumerate(extents):
            if (name, axis) in ends:
                places = sorted(ends[name, axis] | {0, extent})
                yield number, tensor, axis, tuple(b - a for a, b in pairwise(places))


def _derive(
    program: KernelGraph,
    candidate: KernelGraph,
    domain: ExactDomain,
    cuts: tuple[TensorCut, ...],
    signed: tuple[int, ...],
) -> Derivation:
    masks = (i for i, source in enumerate(program.inputs) if source.tensor.dtype is DType.BOOL)
    inputs = domain.inputs([source.tensor.shape for source in program.inputs], masks)
    expected, got = domain.outputs(0, program, inputs), domain.outputs(1, candidate, inputs)
    closings = [closing for pair in zip(expected, got, strict=True) for closing in _compare(domain, *pair)]
    atoms, cut = tuple(domain.atoms), tuple(domain.cut)
    shown = all(closing.multiplier is not None for closing in closings)
    more = () if shown else tuple(_slices(domain, program, candidate))
    return Derivation(
        domain.tensors,
        tuple(closings),
        len(inputs),
        atoms,
        cut,
        False,
        cuts,
        signed,
        more,
        tuple(domain.reasons),
        domain.unnested,
    )


def _same_interface(program: KernelGraph, candidate: KernelGraph) -> None:
    mine, theirs = kernel_types(program), kernel_types(candidate)
    wanted, got = ([source.tensor.signature for source in graph.inputs] for graph in (program, candidate))
    if wanted != got:
        raise GraphError(f"expected inputs of the program's shapes {_list_text(wanted)}, got {_list_text(got)}")
    wanted, got = [mine[n].signature for n in program.outputs], [theirs[n].signature for n in candidate.outputs]
    if wanted != got:
        raise GraphError(f"expected outputs of the program's shapes {_list_text(wanted)}, got {_list_text(got)}")


def _list_text(signatures: list[str]) -> str:
    return f"[{', '.join(signatures)}]"


def _compare(domain: ExactDomain, expected: TensorGrid, got: TensorGrid) -> list[FinalIdentity]:
    """Return the closings for pairs of pieces of one output."""
    return [_closing(domain, p, c) for p, c in domain.compared(expected, got)]


def _step(a: TensorTerm | UndefinedPiece) -> int | None:
    return None if isinstance(a, UndefinedPiece) else a.step


def _closing(domain: ExactDomain, p: TensorTerm | UndefinedPiece, c: TensorTerm | UndefinedPiece) -> FinalIdentity:
    unknown = FinalIdentity(_step(p), _step(c), None)
    if isinstance(p, UndefinedPiece) or isinstance(c, UndefinedPiece) or p.strings != c.strings:
        return unknown
    if p.element == c.element:
        return structs.replace(unknown, multiplier=())
    try:
        found = multiplier(domain.tensors, p.element, c.element)
        if found is not None:
            return structs.replace(unknown, multiplier=found)
        with domain.tensors.scope() as uses:
            cases = equal_in_cases(domain.tensors, p.element, c.element)
        return (
            unknown
            if cases is None
            else structs.replace(unknown, multiplier=cases[0], masks=cases[1], uses=frozenset(uses))
        )
    except (ProofIncomplete, RecursionError) as reason:
        domain.reasons.append(str(reason) if isinstance(reason, ProofIncomplete) else "the terms are nested too deeply")
        return unknown


def _reachable(roots: Iterable[int], operands: Callable[[int], Iterable[int]]) -> list[int]:
    needed: set[int] = set()
    stack = list(roots)
    while stack:
        number = stack.pop()
        if number not in needed:
            needed.add(number)
            stack.extend(operands(number))
    return sorted(needed)
