"""The comparison of the two engines: small versions of the examples, and guided held to exhaustive.

Exhaustive lists what is in the space and equal to the program at random points in float64; guided must list the same.
What only exhaustive finds must satisfy exactly the predicates of search/known_incompleteness.py; what only guided finds
is a bug.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verdict import Candidate, Probable, Unknown, Verdict
from mirage_formal.search.engine_interface import Engine, SearchOptions
from mirage_formal.search.exhaustive import ExhaustiveEngine
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.known_incompleteness import IncompletenessReason, is_equal, missing_reason
from mirage_formal.search.space import SearchSpace, load_space

K = OpKind


def tensor(name: str, *shape: int) -> Input:
    return Input(name, DTensor(shape, DType.FLOAT16), row_major(shape))


def program(inputs: tuple[Input, ...], *ops: Op) -> KernelGraph:
    return KernelGraph(inputs, ops, (len(inputs) + len(ops) - 1,))


def op(kind: OpKind, *operands: int, dim: int | None = None) -> Op:
    return Op(kind, operands, Attrs(dim=dim))


def matmul(m: int, k: int, n: int) -> KernelGraph:
    return program((tensor("X", m, k), tensor("W", k, n)), op(K.MATMUL, 0, 1))


def rmsnorm(m: int, k: int, n: int) -> KernelGraph:
    return program((tensor("X", m, k), tensor("W", k, n)), op(K.RMS_NORM, 0, dim=1), op(K.MATMUL, 2, 1))


def attention(*lead: int, q: int, d: int, k: int) -> KernelGraph:
    last = len(lead) + 1
    return program(
        (tensor("Q", *lead, q, d), tensor("K", *lead, d, k), tensor("V", *lead, k, d)),
        op(K.MATMUL, 0, 1),
        op(K.EXP, 3),
        op(K.SUM, 4, dim=last),
        op(K.DIV, 4, 5),
        op(K.MATMUL, 6, 2),
    )


def qknorm(q: int, d: int, k: int) -> KernelGraph:
    return program(
        (tensor("Q", q, d), tensor("K", d, k), tensor("V", k, d)),
        op(K.RMS_NORM, 0, dim=1),
        op(K.RMS_NORM, 2, dim=1),
        op(K.MATMUL, 3, 1),
        op(K.EXP, 5),
        op(K.SUM, 6, dim=1),
        op(K.DIV, 6, 7),
        op(K.MATMUL, 8, 4),
    )


def lora(m: int, k: int, r: int, n: int) -> KernelGraph:
    return program(
        (tensor("X", m, k), tensor("W", k, n), tensor("A", k, r), tensor("B", r, n)),
        op(K.MATMUL, 0, 1),
        op(K.MATMUL, 0, 2),
        op(K.MATMUL, 5, 3),
        op(K.ADD, 4, 6),
    )


def gated(m: int, k: int, n: int) -> KernelGraph:
    return program(
        (tensor("X", m, k), tensor("W", k, n), tensor("U", k, n)),
        op(K.MATMUL, 0, 1),
        op(K.SILU, 3),
        op(K.MATMUL, 0, 2),
        op(K.MUL, 4, 5),
    )


def ntrans(m: int, n: int) -> KernelGraph:
    return program(
        (tensor("H", m, n), tensor("X", m, n), tensor("A", m, n)),
        op(K.RMS_NORM, 0, dim=1),
        op(K.ADD, 1, 3),
        op(K.MUL, 2, 4),
        op(K.ADD, 1, 5),
        op(K.RMS_NORM, 6, dim=1),
    )


def latent(q: int, d: int, r: int, n: int) -> KernelGraph:
    """Attention behind two linear layers that make its keys and values from a latent tensor, held in both layouts."""
    inputs = (tensor("Q", q, d), tensor("Wk", d, r), tensor("CT", r, n), tensor("C", n, r), tensor("Wv", r, d))
    return program(
        inputs,
        op(K.MATMUL, 1, 2),
        op(K.MATMUL, 0, 5),
        op(K.EXP, 6),
        op(K.SUM, 7, dim=1),
        op(K.DIV, 7, 8),
        op(K.MATMUL, 3, 4),
        op(K.MATMUL, 9, 10),
    )


def tiny(*, kernels: int = 1, defined: int = 1, reread: int = 1, **bounds: object) -> SearchSpace:
    space = load_space("tiny").with_overrides(max_kernel_ops=kernels, **bounds)  # type: ignore[arg-type]
    return replace(space, max_graph_defined=defined, max_reread=reread)


def search(engine: Engine, source: KernelGraph, space: SearchSpace, options: SearchOptions) -> dict[str, KernelGraph]:
    found: dict[str, KernelGraph] = {}
    for unit in engine.units(source, space, options):
        for candidate in engine.run(source, space, options, unit).candidates:
            found[digest(candidate.graph)] = candidate.graph
    return found


@dataclass
class Comparison:
    """What both engines found, and why exhaustive found more."""

    guided: dict[str, KernelGraph]
    exhaustive: dict[str, KernelGraph]
    reasons: Counter[IncompletenessReason]


def compare(source: KernelGraph, space: SearchSpace, *, prune: bool = True) -> Comparison:
    """Run both engines and hold them to the contract.

    Raises:
        AssertionError: Guided lacks a candidate without a reason, or has one that exhaustive lacks.
    """

    def accept(candidate: Candidate) -> Verdict:
        return Probable(1, None) if is_equal(source, candidate.graph) else Unknown("differs at a random point")

    guided = search(GuidedEngine(None), source, space, SearchOptions())
    options = SearchOptions(engine="exhaustive", prune=prune, accept=accept)
    exhaustive = search(ExhaustiveEngine(), source, space, options)
    extra = [to_text(graph) for key, graph in guided.items() if key not in exhaustive]
    assert not extra, f"{len(extra)} that only guided finds, such as\n{extra[0]}"
    reasons: Counter[IncompletenessReason] = Counter()
    for key, graph in exhaustive.items():
        if key not in guided:
            why = missing_reason(source, graph)
            assert why is not None, f"guided lacks, without a reason:\n{to_text(graph)}"
            reasons[why] += 1
    return Comparison(guided, exhaustive, reasons)


#: Every example in small: the programs on which the engines are compared in the whole tiny space.
WHOLE: dict[str, Callable[[], KernelGraph]] = {
    "matmul": lambda: matmul(2, 4, 6),
    "rmsnorm": lambda: rmsnorm(2, 4, 6),
    "attention": lambda: attention(q=2, d=4, k=6),
    "attn (batched)": lambda: attention(2, q=2, d=2, k=4),
    "decode": lambda: attention(2, q=1, d=2, k=4),
    "qknorm": lambda: qknorm(2, 4, 6),
    "gated_mlp": lambda: gated(2, 4, 6),
    "lora": lambda: lora(2, 4, 2, 6),
    "ntrans": lambda: ntrans(2, 4),
}
