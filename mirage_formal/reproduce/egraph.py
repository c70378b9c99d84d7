"""E-graph as subexpression oracle: the target is saturated with the axioms, and expressions are looked up in it.

An expression in the target's e-graph is a subexpression of the target. An expression that is not in it is no
subexpression only if the e-graph is saturated, by egglog's own report. An e-graph truncated at a number of nodes or
seconds decides nothing about expressions that it lacks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from mirage_formal.logic.axioms import AxiomSet, load_axioms
from mirage_formal.logic.sexpr import SExpr
from mirage_formal.logic.terms import Add, Const, Div, Expr, Mul, Sum, Unary, Variable, children, head, postorder
from mirage_formal.search.bounds import divisors
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.resources import install_command

#: Default limits of the reference system: nodes and seconds.
SHIPPED_NODES: Final = 100_000
SHIPPED_SECONDS: Final = 10.0


class StopReason(Enum):
    """Reasons why growth of an e-graph ended: no rule adds a node, or its limit of nodes or seconds was reached.

    After SATURATED, an expression that it lacks is no part of the target.
    """

    SATURATED = "saturated"
    NODES = "node limit"
    SECONDS = "time limit"


@dataclass(frozen=True, slots=True)
class SaturationResult:
    """Result of growing an e-graph.

    Attributes:
        ending: Reason why growth ended.
        nodes: Number of its nodes.
        seconds: Duration.
    """

    ending: StopReason
    nodes: int
    seconds: float


def bindings() -> Any:
    """Return the module ``egglog.bindings``.

    Raises:
        UnsupportedError: egglog is not installed.
    """
    try:
        import egglog.bindings
    except ImportError:
        hint = install_command("reproduce")
        raise UnsupportedError("expected egglog for e-graphs, got no such package", hint=hint) from None
    return egglog.bindings


def extents_product(e: Expr) -> int:
    """Return the product of the extents of all sums in a term as a tree: an upper bound of a rewritten sum's extent."""
    out: dict[Expr, int] = {}
    for node in postorder([e]):
        product = node.extent if isinstance(node, Sum) else 1
        for child in children(node):
            product *= out[child]
        out[node] = product
    return out[e]


class EGraph:
    """E-graph of a set of axioms; ``grow`` starts one, ``forget`` ends it.

    Args:
        extents: Extents for splitting a sum: sum(n, x) becomes sum(i, sum(n / i, x)) for n and i among them. Saturation
            holds for the laws with these extents.
        axioms: The axioms; by default, those of the project.
    """

    def __init__(self, extents: tuple[int, ...], axioms: AxiomSet | None = None) -> None:
        axioms = load_axioms() if axioms is None else axioms
        self._egglog = bindings()
        self._graph = self._egglog.EGraph()
        self._classes: dict[Expr, Any] = {}
        functions = " ".join(f"({_constructor(f)} E)" for f in sorted(axioms.functions))
        self._run(f"(datatype E (Leaf String) (Add E E) (Mul E E) (Divide E E) (Sum i64 E) {functions})")
        self._run("(ruleset laws)")
        for rule in rewrite_rules(axioms, extents):
            self._run(rule)

    def _run(self, text: str) -> list[Any]:
        return list(self._graph.run_program(*self._graph.parse_program(text)))

    def grow(self, target: Expr, max_nodes: int, max_seconds: float) -> SaturationResult:
        """Insert a target and rewrite round by round, until saturation or a limit."""
        begin = time.perf_counter()
        self._classes.clear()
        self._run(f"(push 1) {egglog_text(target)}")
        while True:
            (outcome,) = self._run("(run laws 1)")
            nodes, seconds = self._size(), time.perf_counter() - begin
            if not outcome.report.updated:
                return SaturationResult(StopReason.SATURATED, nodes, seconds)
            if nodes > max_nodes:
                return SaturationResult(StopReason.NODES, nodes, seconds)
            if seconds > max_seconds:
                return SaturationResult(StopReason.SECONDS, nodes, seconds)

    def _size(self) -> int:
        (sizes,) = self._run("(print-size)")
        return sum(size for _, size in sizes.sizes)

    def forget(self) -> None:
        """Discard the e-graph that ``grow`` built."""
        self._run("(pop 1)")

    def holds(self, e: Expr) -> bool:
        """Return whether an expression is in the e-graph.

        Sound: if it is, the axioms make it part of the target. Each operator is looked up on the classes of its
        arguments: egglog 13.2's ``check`` says yes to some nested terms that insertion then adds as new.
        """
        return self._class(e) is not None

    def _class(self, e: Expr) -> Any:
        """Return the class of an expression, None if it has none; sums over 1 are their arguments, as in the axioms."""
        for node in postorder([e]):
            if node not in self._classes:
                self._classes[node] = self._look_up(node)
        return self._classes[e]

    def _look_up(self, e: Expr) -> Any:
        below = [self._classes[child] for child in children(e)]
        if None in below:
            return None
        match e:
            case Variable() | Const():
                key = ("Leaf", self._literal(self._egglog.String(head(e))))
            case Sum(1, _):
                return below[0]
            case Sum(extent, _):
                key = ("Sum", self._literal(self._egglog.Int(extent)), *below)
            case _:
                key = (_constructor(head(e)), *below)
        return self._graph.lookup_function(key[0], list(key[1:]))

    def _literal(self, value: Any) -> Any:
        return self._graph.eval_expr(self._egglog.Lit(self._egglog.PanicSpan(), value))[1]


def extents_of(target: Expr) -> tuple[int, ...]:
    """Return all extents above 1 that sums of a target's rewritings can have."""
    return tuple(n for n in divisors(extents_product(target)) if n > 1)


def rewrite_rules(axioms: AxiomSet, extents: tuple[int, ...]) -> Iterator[str]:
    """Yield both directions of every equation as rewrite rules.

    The rule x -> sum(1, x) is left out, because it never terminates.
    """
    for axiom in axioms.axioms.values():
        if axiom.conclusion.relation != "=":
            continue
        left, right = (_pattern(p) for p in (axiom.conclusion.left, axiom.conclusion.right))
        yield f"(rewrite {left} {right} :ruleset laws)"
        if axiom.name == "sum-sum":
            for n in extents:
                for i in extents:
                    if n % i == 0 and n > i:
                        yield f"(rewrite (Sum {n} x) (Sum {i} (Sum {n // i} x)) :ruleset laws)"
        elif axiom.name != "sum-one" and not axiom.name.endswith("-comm"):
            yield f"(rewrite {right} {left} :ruleset laws)"


def _pattern(p: SExpr) -> str:
    if isinstance(p, str):
        return p
    if p[0] == "sum":
        extent = p[1] if isinstance(p[1], str) else f"({' '.join(map(str, p[1]))})"
        return f"(Sum {extent} {_pattern(p[2])})"
    return f"({_constructor(str(p[0]))} {' '.join(_pattern(a) for a in p[1:])})"


def _constructor(symbol: str) -> str:
    return symbol.capitalize()


def egglog_text(e: Expr) -> str:
    """Return an expression in egglog's syntax; sums over 1 are left out, as the axioms allow."""
    match e:
        case Variable() | Const():
            return f'(Leaf "{head(e)}")'
        case Add(a, b) | Mul(a, b) | Div(a, b):
            return f"({_constructor(head(e))} {egglog_text(a)} {egglog_text(b)})"
        case Sum(1, a):
            return egglog_text(a)
        case Sum(extent, a):
            return f"(Sum {extent} {egglog_text(a)})"
        case Unary(function, a):
            return f"({_constructor(function)} {egglog_text(a)})"
