"""Serialization of proof objects: the needed steps and lemmas, renumbered, as compact JSON (docs/proof.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Final

from mirage_formal.prove.equality.index_substitution import Folds
from mirage_formal.prove.equality.polynomials import (
    FactorKind,
    Index,
    LargestParts,
    Monomial,
    Polynomial,
    ProofIncomplete,
    Rational,
)
from mirage_formal.prove.equality.tensor_terms import TensorTerms
from mirage_formal.support.limits import MAX_PROOF_BYTES

VERSION: Final = 2
#: The prover's own bounds on a proof's tables; each is at most the checker's (check/proof/parser.py and replay.py).
MAX_TABLE: Final = 2_000
MAX_ENTRIES: Final = 5_000
MAX_DIGITS: Final = 64
MAX_EXTENT: Final = 1 << 40
MAX_BASES: Final = 500
#: Most work of a replay, as ``replay_work`` estimates what the checker counts.
MAX_REPLAY_WORK: Final = 500_000
_NAMES = {kind: kind.name.lower() for kind in FactorKind} | {FactorKind.INPUT: "in"}


#: A pair of equal tensors: the steps, the multiplier that shows it, and the masks whose cases do.
ClosingLine = tuple[int, int, Monomial, tuple[int, ...]]


def write_proof(
    tensors: TensorTerms,
    steps: Sequence[int],
    lemmas: Sequence[int],
    outputs: Sequence[ClosingLine | None],
    inputs: int,
    atoms: Sequence[tuple[Any, ...]],
) -> bytes:
    """Return the proof that each (program step, candidate step) pair is equal after multiplication by the monomial.

    None stands for a pair of one tensor. Inputs are numbered up to ``inputs``, and atoms from there. After the atoms
    come the tensors of the two graphs that are not split into pieces, as (graph, tensor), axes that are cut to
    segments, as (graph, tensor, axis, lengths), and inputs that are not negative, as (input,).

    Raises:
        ProofIncomplete: The proof is larger than the checker's limits.
    """
    if replay_work(tensors, steps, lemmas, outputs) > MAX_REPLAY_WORK:
        raise ProofIncomplete("the proof takes more work than the checker does")
    writer = _ProofWriter(tensors, inputs, atoms)
    body = writer.proof(steps, lemmas, outputs)
    body["atoms"] += [entry for entry in atoms if len(entry) != 3]
    proof = json.dumps(body, separators=(",", ":")).encode()
    tables = (len(writer.digits), len(writer.table), len(steps), len(lemmas))
    _require(len(proof) <= MAX_PROOF_BYTES and max(tables) <= MAX_TABLE)
    return proof


def _require(good: bool) -> None:
    if not good:
        raise ProofIncomplete("the proof is larger than the checker reads")


def replay_work(
    tensors: TensorTerms, steps: Sequence[int], lemmas: Sequence[int], outputs: Sequence[ClosingLine | None]
) -> int:
    """Return about how much work the checker has with a proof: products, and replaced factors.

    It makes each element again, and has no results of earlier proof steps at hand when it replaces digits or tells
    masks. An estimate, which decides only whether a proof is written.
    """
    work = sum(_step_work(tensors, n) for n in steps) + sum(_lemma_work(tensors, n) for n in lemmas)
    for line in outputs:
        if line is not None:
            pair = [tensors.steps[n].element for n in line[:2]]
            work += _case_work(tensors, pair, line[3])
    return work


def _step_work(tensors: TensorTerms, number: int) -> int:
    step = tensors.steps[number]
    own, size = [tensors.steps[n].element for n in step.operands], 1 + len(step.element)
    match step.body:
        case ("rewrite", new, _, masks):
            return size + _case_work(tensors, [*own, new], masks)
        case ("split", digit, *_):
            return size + _replaced_work(tensors, own, frozenset((digit,)))
        case ("fold", folds):
            return size + _replaced_work(tensors, own, frozenset(d for _, chain in folds for d in chain))
        case ("rename", pairs) | ("slice", _, _, _, pairs):
            return size + _replaced_work(tensors, own, frozenset(d for d, _ in pairs))
        case ("binary", "mul" | "div" | "div_no_nan" | "select") | ("matmul",) | ("rescaled",):
            return size + len(own[0]) * len(own[1])
        case ("unary", "square"):
            return size + len(own[0]) ** 2
    return size + sum(map(len, own))


def _lemma_work(tensors: TensorTerms, number: int) -> int:
    match tensors.lemmas[number].body:
        case ("sum", bound, m, *_):
            return 2 * _replaced_work(tensors, [((m, 1),)], bound)
        case ("max", bound, p, *_) | ("pmax", _, _, bound, p, *_):
            return 2 * _replaced_work(tensors, [p], frozenset(bound))
        case ("content", p, *_):
            return 2 * len(p)
        case ("square", _, root):
            return len(root) ** 2
        case ("largest", _, some, *_):
            return sum(map(len, some)) * (1 + len(some))
    raise AssertionError(number)


def _case_work(tensors: TensorTerms, pair: Sequence[Polynomial], masks: Sequence[int]) -> int:
    """Return the work of a comparison in each case of masks: those of selections are told first, and then all."""
    sizes = sum(map(len, pair))
    return (2 * _replaced_work(tensors, pair, None) << len(masks)) + sizes if masks else sizes


def _replaced_work(tensors: TensorTerms, polynomials: Iterable[Polynomial], digits: frozenset[int] | None) -> int:
    """Return the work of a substitution of digits, or of one that makes every factor again."""
    seen, work = set[int](), 0
    stack = [m for p in polynomials for m, _ in p]
    while stack:
        touched = [f for f, _ in stack.pop() if digits is None or not digits.isdisjoint(tensors.free[f])]
        work += 1 + 2 * len(touched)
        for f in touched:
            if f not in seen:
                seen.add(f)
                work += 1
                stack += tensors.inside(tensors.kind[f], tensors.payload[f])
    return work


class _ProofWriter:
    """A writer that renumbers digits, factors, lemmas and steps in the order of their first use."""

    def __init__(self, tensors: TensorTerms, inputs: int, atoms: Sequence[tuple[Any, ...]]) -> None:
        self.tensors = tensors
        self.inputs = inputs
        self.atoms = atoms
        self.sources: dict[int, int] = {}
        self.digits: dict[int, int] = {}
        self.factors: dict[int, int] = {}
        self.table: list[list[Any]] = []

    def proof(
        self, steps: Sequence[int], lemmas: Sequence[int], outputs: Sequence[ClosingLine | None]
    ) -> dict[str, Any]:
        """Return the proof as a JSON object."""
        numbers = {step: i for i, step in enumerate(steps)}
        return {
            "version": VERSION,
            "lemmas": [self._lemma(self.tensors.lemmas[n].body) for n in lemmas],
            "steps": [self._step(step, numbers) for step in steps],
            "outputs": [[] if line is None else self._output(line, numbers) for line in outputs],
            "factors": self.table,
            "digits": [self.tensors.extent[d] for d in self.digits],
            "bases": self._bases(),
            "atoms": [self.atoms[n - self.inputs] for n in self.sources],
        }

    def _output(self, line: ClosingLine, numbers: dict[int, int]) -> list[Any]:
        first, second, multiplier, masks = line
        out = [numbers[first], numbers[second], self._monomial(multiplier)]
        return [*out, [self._factor(f) for f in masks]] if masks else out

    def _bases(self) -> list[int]:
        bases = list(self.tensors.radicals.table())
        _require(len(bases) <= MAX_BASES)
        return bases

    def _source(self, number: int) -> int:
        if number < 0:
            return ~self._source(~number)
        if number < self.inputs:
            return number
        return self.inputs + self.sources.setdefault(number, len(self.sources))

    # --- terms -------------------------------------------------------------------------------------------------

    def _digit(self, d: int) -> int:
        _require(self.tensors.extent[d] <= MAX_EXTENT)
        return self.digits.setdefault(d, len(self.digits))

    def _index(self, index: Index) -> list[int]:
        out = [index[0]]
        for stride, digit in index[1]:
            out += (stride, self._digit(digit))
        return out

    def _factor(self, f: int) -> int:
        number = self.factors.get(f)
        if number is None:
            entry = self._entry(self.tensors.kind[f], self.tensors.payload[f])
            number = self.factors[f] = len(self.table)
            self.table.append(entry)
        return number

    def _entry(self, kind: FactorKind, payload: Any) -> list[Any]:
        name = _NAMES[kind]
        match kind:
            case FactorKind.INPUT:
                return [name, self._source(payload[0]), [self._index(index) for index in payload[1]]]
            case FactorKind.SUM:
                return [name, [self._digit(d) for d in payload[0]], self._monomial(payload[1])]
            case FactorKind.MAX:
                return [name, [self._digit(d) for d in payload[0]], self._polynomial(payload[1])]
            case FactorKind.PMAX | FactorKind.CARRY:
                index, u, digits, p = payload
                bound = [self._digit(d) for d in digits]
                return [name, self._index(index), self._digit(u), bound, self._polynomial(p)]
            case FactorKind.EXP | FactorKind.POW:
                return [name, self._polynomial(payload)]
            case FactorKind.TOP:
                return [name, [self._polynomial(p) for p in payload]]
            case FactorKind.KEEP:
                return [name, *(self._polynomial(p) for p in payload)]
            case FactorKind.SURD:
                return [name, payload]
            case FactorKind.FN:
                return [name, payload[0], self._polynomial(payload[1])]

    def _monomial(self, m: Monomial) -> list[int]:
        _require(2 * len(m) <= MAX_ENTRIES)
        return [x for f, e in m for x in (self._factor(f), e)]

    def _polynomial(self, p: Polynomial) -> list[list[Any]]:
        _require(len(p) <= MAX_ENTRIES)
        return [[rational(c), *self._monomial(m)] for m, c in p]

    def _folds(self, folds: Folds) -> list[list[int]]:
        _require(len(folds) <= MAX_DIGITS and all(len(chain) < MAX_DIGITS for _, chain in folds))
        return [[self._digit(target), *(self._digit(d) for d in chain)] for target, chain in folds]

    # --- lemmas and steps --------------------------------------------------------------------------------------

    def _lemma(self, body: tuple[Any, ...]) -> list[Any]:
        match body:
            case ("sum", bound, m, opens, parts):
                _require(max(len(opens), len(parts or ())) <= MAX_DIGITS)
                folded = None if parts is None else [[self._factor(s), self._folds(f)] for s, f in parts]
                return ["sum", self._bound(bound), self._monomial(m), self._opens(opens), folded]
            case ("max", bound, p, opens, s, folds):
                opened = self._opens((opens,) if opens else ())
                return ["max", self._bound(bound), self._polynomial(p), opened, self._factor(s), self._folds(folds)]
            case ("pmax", index, u, bound, p, s, folds):
                digits = self._bound(bound)
                head = ["pmax", self._index(index), self._digit(u), digits, self._polynomial(p)]
                return [*head, self._factor(s), self._folds(folds)]
            case ("content", p, e2, m, q, rest):
                return ["content", self._polynomial(p), e2, self._monomial(m), rational(q), self._polynomial(rest)]
            case ("square", p, root):
                return ["square", self._polynomial(p), self._polynomial(root)]
            case ("largest", bound, some, LargestParts(summand, factor, name, inner)):
                head = ["largest", self._bound(bound), [self._polynomial(p) for p in some], self._polynomial(summand)]
                return [*head, self._polynomial(factor), name, self._polynomial(inner)]
        raise AssertionError(body[0])

    def _bound(self, digits: frozenset[int]) -> list[int]:
        _require(len(digits) <= MAX_DIGITS)
        return [self._digit(d) for d in sorted(digits)]

    def _opens(self, opens: Sequence[tuple[int, ...]]) -> list[list[int]]:
        return [[self._factor(f), *(self._digit(d) for d in fresh)] for f, *fresh in opens]

    def _step(self, number: int, numbers: dict[int, int]) -> list[Any]:
        step = self.tensors.steps[number]
        operands = [numbers[n] for n in step.operands]
        match step.body:
            case ("input", i):
                return ["input", self._source(i), [[self._digit(d) for d in string] for string in step.strings]]
            case ("split", *digits):
                return ["split", *operands, *(self._digit(d) for d in digits)]
            case ("fold", folds):
                return ["fold", *operands, self._folds(folds)]
            case ("rename", pairs):
                return ["rename", *operands, [[self._digit(a), self._digit(b)] for a, b in pairs]]
            case ("unary" | "binary" as kind, name):
                return [kind, name, *operands]
            case ("scale" | "offset" as kind, value):
                return [kind, *operands, rational(value)]
            case ("running_max" | "carry" as kind, axis, *u):
                return [kind, *operands, axis, *(self._digit(d) for d in u)]
            case ("repeat", axis, digit):
                return ["repeat", *operands, axis, self._digit(digit)]
            case ("slice", axis, start, string, pairs):
                inner = [self._digit(d) for d in string]
                by = [[self._digit(d), self._index(index)] for d, index in pairs]
                return ["slice", *operands, axis, start, inner, by]
            case ("congruent",):
                a, *rest = operands
                return ["congruent", a, [rest[i : i + 2] for i in range(0, len(rest), 2)]]
            case ("rewrite", element, multiplier, masks):
                new = [self._polynomial(element), self._monomial(multiplier), [self._factor(f) for f in masks]]
                return ["rewrite", *operands, *new]
            case ("reshape" | "transpose" as kind, numbers_):
                return [kind, *operands, list(numbers_)]
            case (kind, *rest):
                return [kind, *operands, *rest]
        raise AssertionError(step.body)


def rational(value: Rational) -> int | str:
    """Return a rational as proof files have it: an integer, or text "numerator/denominator"."""
    value = Fraction(value)
    return value.numerator if value.denominator == 1 else f"{value.numerator}/{value.denominator}"
