"""Replay of a proof that two µGraphs compute the same outputs over the reals."""

from __future__ import annotations

from dataclasses import dataclass, field

from mirage_formal.check.proof.closing_identities import Closing, closing_identity
from mirage_formal.check.proof.elaborate import Elaboration, elaborate
from mirage_formal.check.proof.laws import check_lemma
from mirage_formal.check.proof.operator_terms import Terms
from mirage_formal.check.proof.parser import MAX_EXTENT, MAX_NUMBER, Reader, parse_integer, parse_list, parse_tables
from mirage_formal.check.proof.ring import ProofError, Ring, require
from mirage_formal.check.proof.segmented_tensors import PieceValue, paired_terms
from mirage_formal.check.proof.tensor_steps import TensorReplay
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType

MAX_DIGITS = 2_000
MAX_BASES = 500


@dataclass(frozen=True, slots=True)
class Theorem:
    """Theorem: on all real inputs where the conditions hold, the two graphs have the same outputs.

    Attributes:
        conditions: Divisors that must not be zero and radicands that must not be negative, by graph and operator.
        steps: Number of replayed tensor steps.
        lemmas: Number of replayed lemmas.
        digit_facts: Extents of digits that were split or folded; digits.obligations states each as SMT-LIB.
        closings: The closing identities at the outputs.
        read: Both graphs with the terms of their conditions, and the steps with the polynomials of terms.
    """

    conditions: tuple[str, ...]
    steps: int
    lemmas: int
    digit_facts: frozenset[tuple[int, ...]]
    closings: tuple[Closing, ...]
    read: tuple[list[Elaboration], TensorReplay] = field(compare=False, repr=False)


def replay(program: KernelGraph, candidate: KernelGraph, proof: bytes | str) -> Theorem:
    """Check a proof that a candidate and a program compute the same outputs.

    Sound: the two graphs are elaborated here; every step of the proof is a tensor with the meaning of its own operator
    term; the outputs' terms are those of the graphs; and the elements at equal positions are equal polynomials. So each
    div and sqrt on the way is one that the conditions list, which is what the laws of inverses and roots need.

    Raises:
        ProofError: The proof is not one; ``where`` names the lemma or step at fault.
    """
    terms, where = Terms(), "proof"
    inputs = tuple(x.tensor.shape for x in program.inputs)
    if [x.tensor.signature for x in program.inputs] != [x.tensor.signature for x in candidate.inputs]:
        raise ProofError("expected the inputs of the program", "candidate")
    try:
        tables = parse_tables(proof)
        where = "atoms"
        graphs, atoms, signed = elaborate(terms, (program, candidate), tables["atoms"])
        where = "digits"
        extents = tuple(parse_integer(n, 2, MAX_EXTENT) for n in parse_list(tables["digits"], high=MAX_DIGITS))
        bases = tuple(parse_integer(n, 2, MAX_NUMBER) for n in parse_list(tables["bases"], high=MAX_BASES))
        ring = Ring(extents, bases)
        reader = Reader(ring)
        where = "atoms"
        sources = [terms.input(i, shape) for i, shape in enumerate(inputs)]
        sources += [graphs[parse_integer(graph, 0, 1)].piece(*place) for graph, *place in atoms]
        ring.signed.update(signed)
        ring.masks.update(i for i, x in enumerate(program.inputs) if x.tensor.dtype is DType.BOOL)
        ring.undefined.update(i for i, source in enumerate(sources) if not terms.known[source][0])
        for known in (ring.signed, ring.masks, ring.undefined):
            known.update([~i for i in known])  # source i with one axis
        shapes = tuple(terms.shapes[source] for source in sources)
        for number, raw in enumerate(tables["factors"]):
            where = f"factor {number}"
            reader.entry(raw, shapes)
        reader.named_factors.clear()
        for number, raw in enumerate(tables["lemmas"]):
            where = f"lemma {number}{_law(raw)}"
            check_lemma(reader, number, raw)
        steps = TensorReplay(reader, terms, sources)
        for number, raw in enumerate(tables["steps"]):
            where = f"step {number}{_law(raw)}"
            steps.step(raw)
        where = "outputs"
        closings = _outputs(steps, graphs[0].outputs, graphs[1].outputs, tables["outputs"])
        _nothing_unused("lemmas", len(tables["lemmas"]), ring.used)
        _nothing_unused("steps", len(steps.tensors), steps.used)
        _nothing_unused("atoms", len(atoms), {max(source, ~source) - len(inputs) for source in steps.read})
        _nothing_unused("factors", len(tables["factors"]), reader.needed_factors())
        _nothing_unused("digits", len(extents), reader.named_digits)
    except ProofError as error:
        raise ProofError(error.what, error.where or where) from error
    except RecursionError as error:
        raise ProofError("expected terms nested less deep", where) from error
    held = tuple(dict.fromkeys(graphs[0].conditions + graphs[1].conditions))
    return Theorem(held, len(steps.tensors), len(tables["lemmas"]), frozenset(ring.facts), closings, (graphs, steps))


def _law(raw: object) -> str:
    return f" ({raw[0]})" if type(raw) is list and raw and type(raw[0]) is str and len(raw[0]) < 20 else ""


def _nothing_unused(what: str, count: int, used: set[int]) -> None:
    unused = sorted(set(range(count)) - used)
    require(not unused, f"expected all {what} to be used, got {unused[:9]} that are not")


def _outputs(
    steps: TensorReplay, program: list[PieceValue], candidate: list[PieceValue], raw: list[object]
) -> tuple[Closing, ...]:
    """Compare the outputs, piece by piece, and return the identities that sympy checks once more.

    Sound: equal terms name one tensor; of any other pair, ``steps.difference`` shows that the difference is 0, which is
    enough. sympy can only object. It knows no law of maxima and masks, so pairs that need one are not returned.
    """
    out, wanted = list[Closing](), paired_terms(steps.terms, program, candidate)
    for entry, pair in zip(parse_list(raw, len(wanted), len(wanted)), wanted, strict=True):
        if entry == [] and pair[0] == pair[1]:
            continue
        parts = parse_list(entry, 3, 4)
        require([] not in parts[3:], "expected no empty list of masks")
        *numbers, divided, masks = [*parts, []][:4]
        a, b = (steps.tensor(number) for number in numbers)
        require((a.term, b.term) == pair, f"expected tensors that the graphs compute, got {numbers}")
        require(a.strings == b.strings, f"expected equal strings, got {a.strings} and {b.strings}")
        rest = steps.difference(a.poly, b.poly, divided, masks)
        out += [] if rest or masks else [closing_identity(steps.ring, a.poly, b.poly)]
    return tuple(out)
