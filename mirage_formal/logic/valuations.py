"""Models of axioms in natural numbers, in which a part is at most the whole: they refute what the axioms do not entail.

The value of a tensor is a number from 1 up. Sums are sums, products and quotients are products, an opaque function is a
constant or a power of its argument, and part-of is <=. All leaves have the value 1 and all factors are 1, or one
symbol stands out with a large number: a leaf, a function, or a prime, by which a sum multiplies for each such factor of
its extent. So a target of one term has no part of two, and a target with x once has no part with x twice.

Which of these are models of some axioms is computed from the axioms, so an added axiom leaves fewer, and an axiom that
is switched off may leave more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from typing import Final

from mirage_formal.logic.added_axioms import AxiomChoice, axioms_in_force
from mirage_formal.logic.axioms import Axiom, atoms_of, load_axioms
from mirage_formal.logic.sexpr import SExpr
from mirage_formal.logic.terms import Add, Const, Div, Expr, Mul, Sum, Unary, Variable, head, postorder

#: Most functions whose power is not 1.
_MOST_POWERS: Final = 3
#: Terms of a polynomial above which an axiom counts as one that no model is known to satisfy.
_MOST_TERMS: Final = 4_096
#: Value of the symbol that stands out.
_LARGE: Final = 1 << 40
_DIVISION: Final = "divide"
_LEAF, _SUM = "leaf", "sum"

#: A polynomial in an axiom's variables: by sorted variables with exponents, the coefficient. "" stands for _LARGE.
_Polynomial = Counter[tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class Valuation:
    """A model.

    Attributes:
        large: What stands out: "leaf", "sum", or the name of a function.
        powers: By function, and for the divisor of a quotient, the power; 1 if missing, 0 for a constant.
    """

    large: str
    powers: Mapping[str, int] = field(default_factory=dict)

    def holds(self, axiom: Axiom) -> bool:
        """Return whether an axiom is known to be true in the model; of axioms with premises, transitivity alone is."""
        if axiom.premises:
            return axiom == load_axioms().axioms["sub-trans"]
        try:
            left, right = (self._polynomial(side) for side in (axiom.conclusion.left, axiom.conclusion.right))
        except OverflowError:
            return False
        return left == right if axiom.conclusion.relation == "=" else _at_most(left, right)

    def _polynomial(self, p: SExpr) -> _Polynomial:
        match p:
            case str():
                return Counter({((p, 1),): 1})
            case ("add", a, b):
                return self._polynomial(a) + self._polynomial(b)
            case (("mul" | "divide") as op, a, b):
                power = 1 if op == "mul" else self.powers.get(_DIVISION, 1)
                return _product(self._polynomial(a), _power(self._polynomial(b), power))
            case ("sum", extent, a):
                names = [extent] if isinstance(extent, str) else [str(factor) for factor in extent[1:]]
                factors = Counter(name for name in names if name != "1") if self.large == _SUM else {}
                return _product(Counter({tuple(sorted(factors.items())): 1}), self._polynomial(a))
        function = str(p[0])
        constant: _Polynomial = Counter({(("", 1),) if self.large == function else (): 1})
        return _product(constant, _power(self._polynomial(p[1]), self.powers.get(function, 1)))

    def value(self, e: Expr, symbol: str | int, known: dict[Expr, int]) -> int:
        """Return the value of an expression where a leaf, a function or a prime stands out; ``known`` keeps values."""
        for node in [] if e in known else postorder([e]):
            if node in known:
                continue
            match node:
                case Variable() | Const():
                    known[node] = _LARGE if head(node) == symbol else 1
                case Unary(function, a):
                    known[node] = known[a] ** self.powers.get(function, 1) * (_LARGE if function == symbol else 1)
                case Sum(extent, a):
                    known[node] = known[a] * (_LARGE ** _multiplicity(extent, symbol) if isinstance(symbol, int) else 1)
                case Add(a, b):
                    known[node] = known[a] + known[b]
                case Mul(a, b):
                    known[node] = known[a] * known[b]
                case Div(a, b):
                    known[node] = known[a] * known[b] ** self.powers.get(_DIVISION, 1)
        return known[e]


def _product(a: _Polynomial, b: _Polynomial) -> _Polynomial:
    if len(a) * len(b) > _MOST_TERMS:
        raise OverflowError
    found: _Polynomial = Counter()
    for (x, n), (y, m) in product(a.items(), b.items()):
        found[tuple(sorted((Counter(dict(x)) + Counter(dict(y))).items()))] += n * m
    return found


def _power(a: _Polynomial, power: int) -> _Polynomial:
    return Counter({(): 1}) if power == 0 else _product(a, _power(a, power - 1))


def _at_most(a: _Polynomial, b: _Polynomial) -> bool:
    """Return whether each term of ``a`` divides a term of ``b`` of its own: so ``a`` is at most ``b`` from 1 up."""
    left = list(b.elements())
    for term in a.elements():
        above = next((one for one in left if all(dict(one).get(name, 0) >= n for name, n in term)), None)
        if above is None:
            return False
        left.remove(above)
    return True


def _multiplicity(n: int, prime: int) -> int:
    return 0 if n % prime else 1 + _multiplicity(n // prime, prime)


def _primes(n: int) -> Iterator[int]:
    divisor = 2
    while n > 1:
        if n % divisor:
            divisor = divisor + 1 if divisor * divisor < n else n
        else:
            yield divisor
            n //= divisor


@lru_cache(maxsize=8)
def valuations_of(choice: AxiomChoice) -> tuple[Valuation, ...]:
    """Return the models of the axioms in force."""
    axioms = axioms_in_force(choice)
    added = [axioms.axioms[one.name].conclusion for one in choice.added]
    used = {name for atom in added for side in (atom.left, atom.right) for name in atoms_of(side)}
    freed = {name.removeprefix("sub-") for name in choice.without} & axioms.functions
    free = sorted((used & axioms.functions) | freed)[:_MOST_POWERS]
    found = []
    for division, *numbers in product((1, 0), *[(1, 0, 2)] * len(free)):
        powers = {_DIVISION: division, **dict(zip(free, numbers, strict=True))}
        for large in (_LEAF, _SUM, *sorted(axioms.functions)):
            model = Valuation(large, powers)
            if all(map(model.holds, axioms.axioms.values())):
                found.append(model)
    return tuple(found)


class ValuationRefuter:
    """Refuter of claims that an expression is part of a target, by the models of the axioms in force.

    Sound: every axiom in force is true in a model (``Valuation.holds``) where the claim is not.

    Args:
        choice: The axioms in force.
    """

    def __init__(self, choice: AxiomChoice) -> None:
        self._models = [(number, model) for number, model in enumerate(valuations_of(choice))]
        self._values: dict[tuple[int, str | int], dict[Expr, int]] = {}

    def refutes(self, expression: Expr, target: Expr) -> bool:
        """Return whether a model shows that an expression is no part of the target."""
        nodes = list(postorder([expression]))
        symbols: dict[str, set[str | int]] = {_LEAF: {head(e) for e in nodes if isinstance(e, Variable | Const)}}
        symbols[_SUM] = {prime for e in nodes if isinstance(e, Sum) for prime in _primes(e.extent)}
        symbols |= {e.function: {e.function} for e in nodes if isinstance(e, Unary)}
        for number, model in self._models:
            for symbol in sorted(symbols.get(model.large, ()), key=str):
                known = self._values.setdefault((number, symbol), {})
                if model.value(expression, symbol, known) > model.value(target, symbol, known):
                    return True
        return False


__all__ = ["Valuation", "ValuationRefuter", "valuations_of"]
