"""The subexpression oracle: it decides whether an abstract expression can become part of a program's output.

``NormalFormOracle`` decides the question and certifies every positive answer. ``Z3Oracle`` asks Z3 with the quantified
axioms, as the paper does, but keeps expressions that Z3 cannot decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from mirage_formal.logic.added_axioms import USUAL_AXIOMS, AxiomChoice, axioms_in_force
from mirage_formal.logic.axiom_laws import NO_LAWS, Laws, laws_of
from mirage_formal.logic.axioms import Binding
from mirage_formal.logic.certificate import Certificate
from mirage_formal.logic.session import AxiomSession, SubexpressionAnswer
from mirage_formal.logic.terms import (
    Add,
    Const,
    Div,
    Expr,
    Mul,
    Sum,
    Unary,
    Variable,
    add,
    children,
    div,
    mul,
    postorder,
    sum_,
    unary,
)
from mirage_formal.prove.abstract.certifying_normalizer import CertificateTooLong, certify, certify_occurrence
from mirage_formal.prove.abstract.normal_form import (
    ONE,
    AmbiguousLeadingTerm,
    InArgument,
    InContext,
    InDenominator,
    InFunction,
    NormalForms,
    Witness,
)
from mirage_formal.support.limits import ORACLE_MS

#: Monomials of a target, or of anything nested in it, above which the oracle does not multiply out.
MAX_MONOMIALS: Final = 4096


class Oracle(Protocol):
    """Interface of a pruning oracle.

    Attributes:
        calls: Questions asked.
        cache_hits: Questions answered from the cache.
        unknown: Distinct questions without an answer; they are kept.
    """

    calls: int
    cache_hits: int
    unknown: int

    def contains(self, e: Expr) -> SubexpressionAnswer:
        """Return whether ``e`` is part of some target; a branch is pruned only on REFUTED."""

    def certificate(self, e: Expr) -> Certificate | None:
        """Return a certificate that ``e`` is part of some target; None unless it is known to be."""

    def asked(self) -> tuple[Expr, ...]:
        """Return the distinct expressions asked about, in the order asked."""


class _Profile:
    """Sizes of a normal form, computed without multiplying it out.

    Attributes:
        size: Monomials, with multiplicity.
        below: Monomials of the largest denominator of a monomial; 1 if none.
        widest: Largest of both over the term and all its subterms.
        symbols: Bit set of the variables, constants and functions that occur.
    """

    __slots__ = ("below", "size", "symbols", "widest")

    def __init__(self, size: int, below: int, widest: int, symbols: int) -> None:
        self.size = size
        self.below = below
        self.widest = max(size, below, widest)
        self.symbols = symbols


class _Profiles:
    """A cache of the profiles of terms; by a law the value of a function may be its argument."""

    def __init__(self, laws: Laws = NO_LAWS) -> None:
        self._laws = laws
        self._opened = {function for function, _ in laws.chains}
        self._known: dict[Expr, _Profile] = {}
        self._symbols: dict[object, int] = {}

    def of(self, e: Expr) -> _Profile:
        found = self._known.get(e)
        if found is None:
            # A search asks about terms over terms that it has asked about; a walk to the leaves would cost most of it.
            ready = all(child in self._known for child in children(e))
            for node in [e] if ready else postorder([e]):
                if node not in self._known:
                    self._known[node] = self._build(node)
            found = self._known[e]
        return found

    def _symbol(self, symbol: object) -> int:
        return self._symbols.setdefault(symbol, 1 << len(self._symbols))

    def _build(self, e: Expr) -> _Profile:
        known = self._known
        match e:
            case Variable() | Const():
                return _Profile(1, 1, 1, self._symbol(e))
            case Unary(function, a):
                x = known[a]
                symbols = x.symbols if function in self._laws.functions else x.symbols | self._symbol(function)
                size, below = (x.size, x.below) if function in self._opened else (1, 1)
                return _Profile(size, below, x.widest, symbols)
            case Sum(_, a):
                return known[a]
            case Add(a, b):
                x, y = known[a], known[b]
                return _Profile(x.size + y.size, max(x.below, y.below), max(x.widest, y.widest), x.symbols | y.symbols)
            case Mul(a, b):
                x, y = known[a], known[b]
                return _Profile(x.size * y.size, x.below * y.below, max(x.widest, y.widest), x.symbols | y.symbols)
            case Div(a, b):
                x, y = known[a], known[b]
                return _Profile(x.size, x.below * y.size, max(x.widest, y.widest), x.symbols | y.symbols)


class NormalFormOracle:
    """A decision procedure, by normal forms, for containment in any of several targets.

    Sound: REFUTED only if the axioms, with those added that are laws, do not make the expression part of any target;
    where a normal form would be too large or leading terms tie, the answer is UNKNOWN.
    """

    def __init__(
        self, targets: Sequence[Expr], max_monomials: int = MAX_MONOMIALS, choice: AxiomChoice = USUAL_AXIOMS
    ) -> None:
        self.targets = tuple(targets)
        self._choice = choice
        self._laws = laws_of(choice)
        self._most = max_monomials
        self.calls = 0
        self.cache_hits = 0
        self.unknown = 0
        self._answers: dict[Expr, SubexpressionAnswer] = {}
        self._where: dict[Expr, int] = {}
        self._forms = NormalForms(self._laws)
        self._profiles = _Profiles(self._laws)
        self._limits: list[tuple[int, int, int] | None] = []
        for target in self.targets:
            profile = self._profiles.of(target)
            if profile.widest > max_monomials:
                self._limits.append(None)
            else:
                form = self._forms.of(target)
                self._limits.append((form, self._forms.widest(form), profile.symbols))

    def contains(self, e: Expr) -> SubexpressionAnswer:
        """Return whether ``e`` is part of some target."""
        self.calls += 1
        found = self._answers.get(e)
        if found is not None:
            self.cache_hits += 1
            return found
        found = self._answers[e] = self._decide(e)
        if found is SubexpressionAnswer.UNKNOWN:
            self.unknown += 1
        return found

    def asked(self) -> tuple[Expr, ...]:
        """Return the distinct expressions asked about, in the order asked."""
        return tuple(self._answers)

    def form(self, e: Expr) -> int | None:
        """Return the normal form's number; None if one of the targets is too large to decide by normal forms."""
        return None if None in self._limits else self._forms.of(e)

    def key(self, e: Expr) -> bytes | None:
        """Return a key that equal normal forms share in every process; None unless ``e`` is part of a target."""
        found = self._answers.get(e)
        if found is None:
            found = self._decide(e)
        return self._forms.key(self._forms.of(e)) if found is SubexpressionAnswer.PROVED else None

    def _decide(self, e: Expr) -> SubexpressionAnswer:
        out = SubexpressionAnswer.REFUTED
        for number in range(len(self.targets)):
            match self._decide_one(e, number):
                case SubexpressionAnswer.PROVED:
                    self._where[e] = number
                    return SubexpressionAnswer.PROVED
                case SubexpressionAnswer.UNKNOWN:
                    out = SubexpressionAnswer.UNKNOWN
                case SubexpressionAnswer.REFUTED:
                    pass
        return out

    def _decide_one(self, e: Expr, number: int) -> SubexpressionAnswer:
        limit = self._limits[number]
        if limit is None:
            return SubexpressionAnswer.UNKNOWN
        form, widest, symbols = limit
        profile = self._profiles.of(e)
        # Whatever is in e is in the target too, so it has no symbol and no size that the target does not have. This
        # also keeps every normal form below no wider than the target's. A law keeps the symbols that are not its own.
        if profile.symbols & ~symbols or (self._laws is NO_LAWS and profile.widest > widest):
            return SubexpressionAnswer.REFUTED
        if profile.widest > self._most:
            return SubexpressionAnswer.UNKNOWN
        try:
            return (
                SubexpressionAnswer.REFUTED
                if self._forms.contained(self._forms.of(e), form) is None
                else SubexpressionAnswer.PROVED
            )
        except AmbiguousLeadingTerm:
            return SubexpressionAnswer.UNKNOWN

    def certificate(self, e: Expr) -> Certificate | None:
        """Return a certificate for the first target that contains ``e``; it depends on ``e`` and the targets alone.

        None if there is none, or if it would be too long.
        """
        if self.contains(e) is not SubexpressionAnswer.PROVED:
            return None
        target = self.targets[self._where[e]]
        try:
            return certify_occurrence(e, target) or _certificate(e, target, self._choice)
        except CertificateTooLong:
            return None


def _certificate(e: Expr, target: Expr, choice: AxiomChoice) -> Certificate:
    # Fresh tables: the numbers in them decide which witness is found first, and must not depend on earlier questions.
    forms = NormalForms(laws_of(choice))
    whole = forms.of(target)
    witness = forms.contained(forms.of(e), whole)
    assert witness is not None
    return certify(e, target, _steps(forms, e, witness), choice)


def _steps(forms: NormalForms, e: Expr, witness: Witness) -> Iterator[tuple[str, Binding]]:
    """Yield the chain of A_sub steps that a witness describes, from ``e`` outwards."""
    here = e
    for step in witness:
        if isinstance(step, InFunction):
            yield f"sub-{step.function}", {"x": here}
            here = unary(step.function, here)
            continue
        counts = dict(forms.polynomials[step.whole])
        match step:
            case InContext(context, _):
                extent, atoms, below = context
                for m, c in forms.polynomials[forms.of(here)]:
                    counts[forms.apply(context, m)] -= c
            case InDenominator(m, _):
                extent, atoms, below = 1, (), ONE
                numerator = forms.monomial_term((*forms.monomials[m][:2], ONE))
                yield "sub-div-denominator", {"x": numerator, "y": here}
                here = div(numerator, here)
                counts[m] -= 1
            case InArgument(inside, m, _):
                extent, atoms, below = forms.monomials[m]
                for a in inside:
                    atoms = _remove_atom(atoms, a)
                function = forms.function(inside[0])
                yield f"sub-{function}", {"x": here}
                here = unary(function, here)
                counts[m] -= 1
        rest = forms.counts_term(counts)
        if extent > 1:
            yield "sub-sum", {"i": extent, "x": here}
            here = sum_(extent, here)
        if atoms:
            factor = forms.product_term(atoms)
            yield "sub-mul", {"x": here, "y": factor}
            here = mul(here, factor)
        if below != ONE:
            denominator = forms.term(below)
            yield "sub-div-numerator", {"x": here, "y": denominator}
            here = div(here, denominator)
        if rest is not None:
            yield "sub-add", {"x": here, "y": rest}
            here = add(here, rest)


def _remove_atom(atoms: tuple[int, ...], a: int) -> tuple[int, ...]:
    at = atoms.index(a)
    return atoms[:at] + atoms[at + 1 :]


class Z3Oracle:
    """An oracle that asks Z3 with the quantified axioms and a time limit per question, as in the paper.

    Sound: PROVED only on unsat and REFUTED only on sat; Z3 says sat next to never here, so almost nothing is pruned
    that it merely does not know.
    """

    def __init__(
        self, targets: Sequence[Expr], timeout_ms: int = ORACLE_MS, choice: AxiomChoice = USUAL_AXIOMS
    ) -> None:
        self.targets = tuple(targets)
        self.timeout_ms = timeout_ms
        self.calls = 0
        self.cache_hits = 0
        self.unknown = 0
        self._answers: dict[Expr, SubexpressionAnswer] = {}
        self._session = AxiomSession(axioms_in_force(choice))
        self._writer = NormalFormOracle(targets, choice=choice)

    def contains(self, e: Expr) -> SubexpressionAnswer:
        """Return whether ``e`` is part of some target."""
        self.calls += 1
        found = self._answers.get(e)
        if found is not None:
            self.cache_hits += 1
            return found
        answers: list[SubexpressionAnswer] = []
        for target in self.targets:
            answers.append(self._session.ask(e, target, self.timeout_ms))
            if answers[-1] is SubexpressionAnswer.PROVED:
                break
        found = next(
            (a for a in (SubexpressionAnswer.PROVED, SubexpressionAnswer.UNKNOWN) if a in answers),
            SubexpressionAnswer.REFUTED,
        )
        self._answers[e] = found
        if found is SubexpressionAnswer.UNKNOWN:
            self.unknown += 1
        return found

    def asked(self) -> tuple[Expr, ...]:
        """Return the distinct expressions asked about, in the order asked."""
        return tuple(self._answers)

    def certificate(self, e: Expr) -> Certificate | None:
        """Return a certificate written from normal forms, independent of Z3's answer: it is checked, not trusted."""
        return self._writer.certificate(e)
