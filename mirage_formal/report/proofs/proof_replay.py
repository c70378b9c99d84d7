"""Replay of proofs by the checker's proof kernel, and their formulas, made of values that the kernel computed."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, Final

from mirage_formal.check.equivalence import describe_theorem
from mirage_formal.check.proof.elaborate import Elaboration
from mirage_formal.check.proof.operator_terms import LOOP, Terms
from mirage_formal.check.proof.parser import parse_tables
from mirage_formal.check.proof.replay import Theorem
from mirage_formal.check.proof.ring import Ring
from mirage_formal.check.proof.segmented_tensors import PieceValue
from mirage_formal.check.proof.tensor_steps import CheckedTensor, TensorReplay
from mirage_formal.check.proof_composition import ComposedTheorem, replay_composed
from mirage_formal.graph.graph import BlockGraph, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import BlockContext
from mirage_formal.report.proofs.polynomial_formulas import FormulaConverter
from mirage_formal.report.proofs.proof_formulas import (
    BoundOperator,
    Call,
    Formula,
    Lemma,
    Name,
    Number,
    OperatorLocation,
    OutputIdentity,
    Power,
    ProductFormula,
    ProofPart,
    Quotient,
    ReplayedProof,
    Step,
    SumFormula,
)
from mirage_formal.report.proofs.sum_explanation import ExplanationData, explain_sums

_LAWS: Final = {
    "sum": "nested sums are one sum, factors that do not depend on a digit move out, digits are regrouped",
    "max": "nested maxima are one maximum, digits are regrouped",
    "pmax": "digits of a running maximum are regrouped",
    "content": "a common factor is taken out",
    "square": "a polynomial is a square",
    "largest": "a summand, a factor that is not negative or an increasing function leaves a largest value",
}
#: Steps that move elements or rename digits and compute nothing.
MINOR: Final = frozenset({"split", "fold", "rename", "reshape", "transpose", "repeat", "slice", "input"})
_AXES: Final = ("grid axis x", "grid axis y", "grid axis z", "the loop's iterations")


@dataclass(frozen=True, slots=True)
class Replay:
    """A replayed proof object, with the data for its explanation.

    Attributes:
        theorem: Theorem of the proof kernel.
        raw: The steps as in the proof object.
        names: Names of inputs and atoms.
        places: Operators by term.
        candidate: The candidate; None where the proof is a half.
    """

    theorem: Theorem
    raw: tuple[tuple[Any, ...], ...]
    names: tuple[str, ...]
    places: Mapping[int, Sequence[OperatorLocation]]
    candidate: KernelGraph | None

    @property
    def steps(self) -> TensorReplay:
        """Return the steps as the checker's kernel recorded them."""
        return self.theorem.read[1]


def replay_and_explain(
    program: KernelGraph, candidate: KernelGraph, proof: bytes, *, formulas: bool = True
) -> ReplayedProof:
    """Replay a proof in the checker's proof kernel, and convert it to formulas.

    Args:
        program: The program.
        candidate: The candidate.
        proof: The proof object of docs/proof.md.
        formulas: Whether steps, lemmas and identities are converted to formulas.

    Raises:
        ProofError: The kernel refuses it; names the step.
    """
    theorem = replay_composed(program, candidate, proof)
    found = describe_theorem(theorem)
    if isinstance(theorem, ComposedTheorem):
        _, kernels, padding, *_ = json.loads(proof)
        named = [("between pads and slices", theorem.kernels, kernels), ("pads and slices", theorem.padding, padding)]
        parts = [_part(name, _read(one, program, text.encode(), None), formulas) for name, one, text in named]
    else:
        parts = [_part("", _read(theorem, program, proof, (program, candidate)), formulas)]
    size, lemmas = len(proof), len(found.obligations)
    return ReplayedProof(tuple(parts), found.conditions, found.added, size, lemmas, proof.decode())


def _read(
    theorem: Theorem, program: KernelGraph, proof: bytes, graphs: tuple[KernelGraph, KernelGraph] | None
) -> Replay:
    tables = parse_tables(proof)
    steps = theorem.read[1]
    names = [one.name or f"x{i}" for i, one in enumerate(program.inputs)]
    sides = ("program", "candidate")
    atoms: list[Any] = tables["atoms"]
    names += [f"{sides[row[0]]}.d{row[1]}" for row in atoms if len(row) == 3]
    places: dict[int, list[OperatorLocation]] = {}
    if graphs is not None:
        whole = [{row[1] for row in atoms if len(row) == 2 and row[0] == i} for i in (0, 1)]
        places = operators_by_term(steps.terms, list(zip(sides, graphs, whole, strict=True)))
    raw: list[Any] = tables["steps"]
    return Replay(theorem, tuple(map(tuple, raw)), tuple(names), places, graphs[1] if graphs else None)


def _part(name: str, found: Replay, formulas: bool) -> ProofPart:
    told = explain_sums(ExplanationData(found.steps, found.raw, found.names, found.places, found.candidate))
    if not formulas:
        return ProofPart(name, told, (), (), (), shown=False)
    writer = FormulaConverter(found.steps.ring, found.names)
    return ProofPart(
        name,
        told,
        tuple(_StepExplainer(found, writer).all()),
        tuple(_lemmas(found.steps.ring, writer)),
        tuple(_identities(found, writer)),
    )


def _identities(found: Replay, writer: FormulaConverter) -> list[OutputIdentity]:
    out = []
    for one in found.theorem.closings:
        left, right = writer.whole(sorted(one.left)), writer.whole(sorted(one.right))
        same = sorted(one.left) == sorted(one.right)
        how = "the two are the same term" if same else "their difference, multiplied by divisors in it, is 0"
        out.append(OutputIdentity(left, right, how))
    return out


def _lemmas(ring: Ring, writer: FormulaConverter) -> list[Lemma]:
    found = []
    for law, table in ring.lemmas.items():
        for key, (number, result) in table.items():
            found.append((number, law, key, result))
    return [
        Lemma(number, _LAWS[law], *_sides(law, key, result, writer))
        for number, law, key, result in sorted(found, key=lambda one: one[0])
    ]


def _sides(law: str, key: Any, result: Any, writer: FormulaConverter) -> tuple[Formula, Formula]:
    whole = writer.whole
    match law:
        case "sum":
            digits, mono = key
            return BoundOperator("sum", writer.bound(digits), whole([(mono, 1)])), whole(sorted(result.items()))
        case "max":
            digits, body = key
            return BoundOperator("max", writer.bound(digits), whole(sorted(body))), whole([(((result, 2),), 1)])
        case "pmax":
            index, u, digits, body = key
            until = (writer.digit(u), writer.index(index))
            return BoundOperator("max", writer.bound(digits), whole(sorted(body)), until), whole([(((result, 2),), 1)])
        case "largest":
            (digits, some), (out, by, name, inner) = key, result
            most = Call("max", tuple(whole(sorted(body)) for body in sorted(some, key=sorted)))
            of = whole(sorted(inner.items()))
            over = BoundOperator("max", writer.bound(digits), of) if digits else of
            taken = ProductFormula((whole(sorted(by.items())), Call(name, (over,)) if name else over))
            left: Formula = BoundOperator("max", writer.bound(digits), most) if digits else most
            return left, SumFormula(((False, whole(sorted(out.items()))), (False, taken)))
        case "square":
            return whole(sorted(key)), Power(whole(sorted(result.items())), Fraction(2))
        case _:
            poly, power = key
            outside, factor, inner = result
            taken = ProductFormula((whole([(outside, factor)]), whole(sorted(inner.items()))))
            exponent = Fraction(power, 2)
            return Power(whole(sorted(poly)), exponent), Power(taken, exponent)


class _StepExplainer:
    """Converter of the steps of a replayed proof to formulas, one after another."""

    def __init__(self, found: Replay, writer: FormulaConverter) -> None:
        self._found, self._writer = found, writer
        self._tensors: list[CheckedTensor] = found.steps.tensors

    def all(self) -> list[Step]:
        return [self._step(number) for number in range(len(self._tensors))]

    def _step(self, number: int) -> Step:
        law, *arguments = self._found.raw[number]
        tensor = self._tensors[number]
        places = tuple(self._found.places.get(tensor.term, ()))
        words, left, operands = self._left(law, arguments, tensor, any("." in place.node for place in places))
        right = self._writer.whole(sorted(tensor.poly.items()))
        return Step(number, words, law in MINOR, self._name(number), left, right, operands, places)

    def _name(self, number: int) -> Formula:
        strings = self._tensors[number].strings
        return Name(f"t{number}", tuple(self._writer.string(string) for string in strings if string))

    def _left(
        self, law: str, arguments: list[Any], made: CheckedTensor, inside: bool
    ) -> tuple[str, Formula, tuple[int, ...]]:
        """Return the description of a step in words, its formula, and the numbers of the steps that it uses."""
        name = self._name
        match law, arguments:
            case "input", [number, _]:
                indices = tuple(self._writer.string(string) for string in made.strings)
                return "an element of an input", Name(self._found.names[max(number, ~number)], indices), ()
            case "unary", [kind, a]:
                return f"{kind} of each element", Call(kind, (name(a),)), (a,)
            case "binary", [kind, a, b]:
                return _BINARY[kind], _binary(kind, name(a), name(b)), (a, b)
            case "matmul", [a, b]:
                inner = self._tensors[a].strings[-1]
                body = ProductFormula((name(a), name(b)))
                return (
                    "matrix product",
                    BoundOperator("sum", self._writer.bound(inner), body) if inner else body,
                    (a, b),
                )
            case "scale", [a, q]:
                return "times a number", ProductFormula((Number(Fraction(q)), name(a))), (a,)
            case "offset", [a, q]:
                return (
                    "plus a number",
                    SumFormula(((False, name(a)), (Fraction(q) < 0, Number(abs(Fraction(q)))))),
                    (a,),
                )
            case (("sum" | "max" | "running_max" | "carry"), [a, axis, *rest]):
                kept = rest[0] if law == "sum" else 1
                gone = _summed_digits(self._found.steps, a, axis, kept)
                over = f"{law.replace('_', ' ')} over {_axis(axis, inside)}"
                if not gone:
                    return f"{over}, which has one element", name(a), (a,)
                return over, BoundOperator("sum" if law == "sum" else "max", self._writer.bound(gone), name(a)), (a,)
            case "rescaled", [x, f]:
                return "last value of s = s * f + x over the loop", Call("rescaled", (name(x), name(f))), (x, f)
            case (("split" | "fold" | "rename" | "rewrite" | "congruent"), [a, *rest]):
                pairs = rest[0] if law == "congruent" else []
                return _SAME[law], name(a), (a, *(step for pair in pairs for step in pair))
            case (("reshape" | "transpose" | "repeat" | "slice"), [a, *_]):
                return f"{law}: the same elements, in other places", name(a), (a,)
        raise AssertionError(law)


_SAME: Final = {
    "split": "an index is written with two digits", "fold": "digits are written as one",
    "rename": "digits get other names", "congruent": "the same operators of equal tensors",
    "rewrite": "the same element in another form: case by case of masks, or with sums of exponentials divided out",
}  # fmt: skip
_BINARY: Final = {
    "add": "sum of two", "sub": "difference", "mul": "product, element by element", "div": "quotient",
    "max": "the larger of two", "select": "the second where the first, a mask, is 1, and 0 elsewhere",
    "div_no_nan": "quotient, and 0 where the divisor is 0", "eq": "whether they are equal",
    "lt": "whether the first is less", "le": "whether the first is not greater",
}  # fmt: skip


def _binary(kind: str, a: Formula, b: Formula) -> Formula:
    match kind:
        case "add" | "sub":
            return SumFormula(((False, a), (kind == "sub", b)))
        case "mul":
            return ProductFormula((a, b))
        case "div":
            return Quotient(a, b)
        case "select":
            return Call("select", (a, b, Number(Fraction(0))))
        case "max" | "div_no_nan" | "eq" | "lt" | "le":
            return Call(kind, (a, b))
        case _:
            raise AssertionError(kind)


def _axis(axis: int, inside: bool) -> str:
    """Return the name of an axis; inside a block the first four are the grid's and the loop's."""
    if not inside:
        return f"dim {axis}"
    return _AXES[axis] if axis <= LOOP else f"dim {axis - LOOP - 1} of the tile"


def _summed_digits(steps: TensorReplay, operand: int, axis: int, kept: int) -> tuple[int, ...]:
    """Return the digits of an axis that a reduction sums over."""
    string = steps.tensors[operand].strings[axis]
    cut = len(string)
    while cut and prod(steps.ring.extents[d] for d in string[cut:]) < kept:
        cut -= 1
    return string[:cut]


# --- places ----------------------------------------------------------------------------------------------------------


_WHERE: Final = re.compile(r"kernel operator ([0-9]+)(?:, block operator ([0-9]+))?")
#: Most operators that are named for one term.
_MOST: Final = 4


class _TermListener(Terms):
    """The same table of terms, with a record of the operators that request a term."""

    def __init__(self, terms: Terms) -> None:
        super().__init__()
        self._ids, self.shapes, self._keys, self.known = terms._ids, terms.shapes, terms._keys, terms.known
        self.here: OperatorLocation | None = None
        self.made: dict[int, list[OperatorLocation]] = {}

    def _make(self, shape: Sequence[int], *key: object) -> int:
        number = super()._make(shape, *key)
        found = self.made.setdefault(number, [])
        if self.here is not None and self.here not in found and len(found) < _MOST:
            found.append(self.here)
        return number


class _WatchedElaboration(Elaboration):
    """An elaboration that tells the listener its current operator."""

    def __init__(self, terms: _TermListener, graph: KernelGraph, name: str, whole: Collection[int]) -> None:
        self._listener, self._name = terms, name
        self._counts: dict[str, int] = {}
        self._inputs = [OperatorLocation(name, f"in{n}", one.name) for n, one in enumerate(graph.inputs)]
        super().__init__(terms, graph, name, whole)
        for number, place in enumerate(self._inputs):
            terms.made.setdefault(terms.input(number, graph.inputs[number].tensor.shape), []).append(place)

    def _at(self, kind: str, label: str) -> OperatorLocation:
        found = _WHERE.search(self._where)
        if found is None:
            return OperatorLocation(self._name, "", label)
        kernel, block = found[1], found[2]
        node = f"op{kernel}" if block is None else f"op{kernel}.op{block}"
        if kind != "op":
            key = f"{kind} {node}"
            count = self._counts[key] = self._counts.get(key, -1) + 1
            node = f"{node.partition('.')[0]}.{kind}{count}"
        return OperatorLocation(self._name, node, label)

    def _apply(self, op: Op, xs: list[PieceValue], context: BlockContext | None) -> list[PieceValue]:
        self._listener.here = self._at("op", op.kind.value)
        try:
            return super()._apply(op, xs, context)
        finally:
            self._listener.here = None

    def _load(self, x: PieceValue, how: InputIterator, graph: BlockGraph) -> PieceValue:
        self._listener.here = self._at("it", "tile")
        try:
            return super()._load(x, how, graph)
        finally:
            self._listener.here = None

    def _save(self, x: PieceValue, saver: OutputSaver, graph: BlockGraph) -> PieceValue:
        self._where = self._where.partition(", block operator")[0]
        self._listener.here = self._at("sv", "save")
        try:
            return super()._save(x, saver, graph)
        finally:
            self._listener.here = None


def operators_by_term(
    terms: Terms, graphs: Sequence[tuple[str, KernelGraph, Collection[int]]]
) -> dict[int, list[OperatorLocation]]:
    """Return the operators by the number of a term that they compute.

    Args:
        terms: The table of a replay.
        graphs: Name and graph of each side, and its tensors that the proof takes whole.
    """
    made: dict[int, list[OperatorLocation]] = {}
    for name, graph, whole in graphs:
        listener = _TermListener(terms)
        _WatchedElaboration(listener, graph, name, whole)
        for term, found in listener.made.items():
            made.setdefault(term, []).extend(found)
    return made
