"""Disjointness of pairs of accesses: the query for a solver, and the cases that need no solver."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mirage_formal.codegen.program.access import GRID, Access
from mirage_formal.codegen.program.integers import (
    Range,
    add,
    are_contradictory,
    conjuncts,
    fold,
    implied_bounds,
    interval,
    less_than,
    make_binary,
    negate,
    variables,
)
from mirage_formal.codegen.program.program import Int, IntBin, IntExpr, IntOp, Program, Var
from mirage_formal.codegen.safety.arith import Query
from mirage_formal.codegen.safety.happens_before import ThreadRelation
from mirage_formal.codegen.safety.mixed_radix import (
    NO_FACTS,
    Facts,
    Linear,
    are_separate,
    determined_variables,
    have_disjoint_offsets,
    implied_facts,
    is_injective,
    to_digits,
)
from mirage_formal.codegen.safety.obligation_types import DischargedObligation, DischargeMethod

SECOND = "~2"


def extents(program: Program, access: Access | None = None) -> dict[str, int]:
    """Return the extent of each variable that an access can mention."""
    found = {"tid": program.threads, **dict(zip(GRID, program.grid, strict=True))}
    if access is not None:
        found.update(access.context.loops)
    return found


def query_variables(names: Iterable[str], sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """Return the named variables with their extents, without repetitions, in the order of their names."""
    return tuple((name, sizes[name]) for name in sorted(set(names)))


def disjunction(conditions: Sequence[IntExpr]) -> IntExpr:
    """Return an expression that is nonzero where one of the conditions, each 0 or 1, holds."""
    total: IntExpr = Int(0)
    for condition in conditions:
        total = add(total, condition)
    return total


def not_equal(a: IntExpr, b: IntExpr) -> IntExpr:
    """Return an expression that is 1 where two expressions differ, else 0."""
    return Int(0) if a == b else negate(make_binary(IntOp.EQ, a, b))


def simplify_divisions(e: IntExpr, ranges: Mapping[str, Range], bounds: Mapping[IntExpr, Range]) -> IntExpr:
    """Return an expression without divisions by constants that bounds show to exceed the dividend.

    Sound: for 0 <= a < c, a / c = 0 and a % c = a, so wherever the bounds hold the value is the same.
    """
    if not isinstance(e, IntBin):
        return e
    a, b = simplify_divisions(e.a, ranges, bounds), simplify_divisions(e.b, ranges, bounds)
    if e.op in (IntOp.DIV, IntOp.MOD) and isinstance(e.b, Int):
        low, high = interval(e.a, ranges, bounds)
        if low >= 0 and high < e.b.value:
            return Int(0) if e.op is IntOp.DIV else a
    return make_binary(e.op, a, b)


@dataclass(slots=True)
class PairAnalysis:
    """A decision procedure for pairs of accesses to one memory; it caches its results for each access.

    Attributes:
        program: The Program.
        private: Variables for which the two accesses have separate values, besides their loops.
        whole: Whether addresses are in bytes (shared memory) rather than elements (a parameter).
    """

    program: Program
    private: tuple[str, ...]
    whole: bool
    _start: dict[Access, IntExpr] = field(default_factory=dict)
    _linear: dict[Access, tuple[Linear | None, Facts]] = field(default_factory=dict)
    _hull: dict[Access, Range | None] = field(default_factory=dict)

    def start(self, access: Access) -> IntExpr:
        """Return the first address of an access, simplified under its conditions, so valid only where these hold."""
        if access not in self._start:
            ranges = {name: (0, extent - 1) for name, extent in extents(self.program, access).items()}
            begin = access.address if self.whole else access.index
            self._start[access] = simplify_divisions(begin, ranges, implied_bounds(access.context.guards, ranges))
        return self._start[access]

    def width(self, access: Access) -> int:
        """Return the length of an access: in bytes if addresses are bytes (``whole``), else in elements."""
        return access.bytes if self.whole else access.count

    def hull(self, access: Access) -> Range | None:
        """Return bounds of the addresses that an access touches; None if it never happens."""
        if access not in self._hull:
            ranges = {name: (0, extent - 1) for name, extent in extents(self.program, access).items()}
            bounds = implied_bounds(access.context.guards, ranges)
            low, high = interval(self.start(access), ranges, bounds)
            digits, _ = self.linear(access)
            high = high if digits is None else min(high, digits.largest)
            empty = are_contradictory(bounds) or low > high
            self._hull[access] = None if empty else (low, high + self.width(access) - 1)
        return self._hull[access]

    def apart(self, a: Access, b: Access) -> bool:
        """Return whether bounds alone show two accesses to be disjoint.

        Sound: bounds contain every address (see ``interval``), and bounds that do not meet have no common byte.
        """
        x, y = self.hull(a), self.hull(b)
        return x is None or y is None or x[1] < y[0] or y[1] < x[0]

    def linear(self, access: Access) -> tuple[Linear | None, Facts]:
        """Return the first index that it touches, as digits, and their bounds.

        Its loops are named by position, so that equal accesses are equal.
        """
        if access not in self._linear:
            sizes = extents(self.program, access)
            names: dict[str, IntExpr] = {}
            for position, (name, extent) in enumerate(access.context.loops):
                names[name] = Var(f"loop{position}")
                sizes[f"loop{position}"] = extent
            guards = [fold(guard, names) for guard in conjuncts(access.context.guards)]
            self._linear[access] = to_digits(fold(self.start(access), names), sizes), implied_facts(guards, sizes)
        return self._linear[access]

    def decide_by_bounds(self, a: Access, b: Access, who: ThreadRelation) -> DischargedObligation | None:
        """Return Held if bounds or digits show two accesses to be disjoint; None if not.

        Sound: see ``apart``, ``are_separate``, ``have_disjoint_offsets``, ``is_injective`` and
        ``determined_variables``. If two accesses are the same function of the thread and their loops, and meet only if
        all digits are equal, and these determine the thread, then no two threads meet; and if they determine the loops
        too, one thread meets itself only in the same iteration.
        """
        if self.apart(a, b):
            return DischargedObligation(DischargeMethod.INTERVAL)
        (x, given), (y, other) = self.linear(a), self.linear(b)
        if x is None or y is None:
            return None
        width = max(self.width(a), self.width(b))
        if are_separate(x, y, width, given, other) or have_disjoint_offsets(x, y, width, given, other):
            return DischargedObligation(DischargeMethod.RADIX)
        same = x == y and self._sizes(a) == self._sizes(b)
        given = given if given == other else NO_FACTS
        if (
            not same
            or who & ThreadRelation.AGAIN
            or (who & ThreadRelation.SAME and a != b)
            or not is_injective(x, width, given)
        ):
            return None
        sizes = extents(self.program)
        targets = {name for name in self.private if sizes[name] > 1}
        if who & ThreadRelation.SAME:
            targets |= {f"loop{position}" for position, (_, n) in enumerate(a.context.loops) if n > 1}
        return DischargedObligation(DischargeMethod.RADIX) if targets <= determined_variables(x, given) else None

    def exact(self, access: Access) -> bool:
        """Return whether no element is touched twice, by any thread, block or iteration."""
        x, given = self.linear(access)
        if x is None or not is_injective(x, self.width(access), given):
            return False
        sizes = extents(self.program)
        targets = {name for name in self.private if sizes[name] > 1}
        targets |= {f"loop{position}" for position, (_, n) in enumerate(access.context.loops) if n > 1}
        return targets <= determined_variables(x, given)

    def _sizes(self, access: Access) -> tuple[int, ...]:
        return tuple(extent for _, extent in access.context.loops)

    def query(self, a: Access, b: Access, who: ThreadRelation) -> Query:
        """Return the query whether two accesses overlap; ``~2`` marks the variables of the second."""
        sizes = extents(self.program, a)
        own = (*self.private, *(name for name, _ in b.context.loops))
        rename: dict[str, IntExpr] = {name: Var(name + SECOND) for name in own}
        sizes.update({name + SECOND: extent for name, extent in extents(self.program, b).items()})
        x, y = self.start(a), fold(self.start(b), rename)
        guards = [*a.context.guards, *(fold(guard, rename) for guard in b.context.guards)]
        meet = [less_than(x, add(y, Int(self.width(b)))), less_than(y, add(x, Int(self.width(a))))]
        true = tuple(dict.fromkeys([*self._who(a, b, who), *conjuncts(guards), *meet]))
        true = tuple(e for e in true if not (isinstance(e, Int) and e.value))
        names = set().union(*map(variables, true)) | {"tid"}
        show = (("index", x), (f"index{SECOND}", y))
        return Query(query_variables(names.union(variables(x), variables(y)), sizes), true, show=show)

    def _who(self, a: Access, b: Access, who: ThreadRelation) -> list[IntExpr]:
        sizes = extents(self.program)
        threads = [not_equal(Var(name), Var(name + SECOND)) for name in self.private if sizes[name] > 1]
        others = disjunction(threads)
        if who & ThreadRelation.AGAIN or (who & ThreadRelation.SAME and who & ThreadRelation.OTHERS and a != b):
            return []
        loops = [not_equal(Var(name), Var(name + SECOND)) for name, extent in a.context.loops if extent > 1]
        if who & ThreadRelation.SAME and a == b:
            return (
                [disjunction([*threads, *loops])]
                if who & ThreadRelation.OTHERS
                else [*map(negate, threads), disjunction(loops)]
            )
        return [*map(negate, threads)] if who & ThreadRelation.SAME else [others]


def is_trivially_unsatisfiable(query: Query) -> bool:
    """Return whether a condition of the query is the constant 0, so that it is unsatisfiable."""
    return any(isinstance(e, Int) and e.value == 0 for e in query.true)


def remainder(e: IntExpr, modulus: int) -> IntExpr:
    """Return the expression ``e % modulus``."""
    return IntBin(IntOp.MOD, e, Int(modulus))
