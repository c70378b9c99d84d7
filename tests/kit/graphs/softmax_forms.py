"""Attention in every form in which search finds it, and in some more, without a running maximum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from mirage_formal import BlockBuilder, BlockTensor, Graph, Tensor
from mirage_formal.frontend.handles import AnyTensor
from tests.kit.proofs.claims import Pair, Read, Saved, Shapes, kernel, on, program

Body = Callable[[Graph, Tensor, Tensor, Tensor], Tensor]

NORMS = ("", "qk", "qv")
SUMS = ("accum_last", "accum_then_sum", "sum_then_accum")


def attention_inputs(b: int = 1, m: int = 256, d: int = 64, n: int = 4096, e: int = 64) -> Shapes:
    return {"Q": (2 * b, m, d), "K": (2 * b, d, n), "V": (2 * b, n, e)}


def decode_inputs(b: int = 1, d: int = 128, n: int = 4096) -> Shapes:
    return {"Q": (64 * b, 1, d), "K": (64 * b, d, n), "V": (64 * b, n, d)}


class _Norms(Protocol[AnyTensor]):
    """The builder of a kernel graph or of a block graph."""

    def rms_norm(self, A: AnyTensor, *, dim: int) -> AnyTensor: ...


def normed(
    g: _Norms[AnyTensor], norms: str, q: AnyTensor, k: AnyTensor, v: AnyTensor
) -> tuple[AnyTensor, AnyTensor, AnyTensor]:
    q = g.rms_norm(q, dim=2) if norms else q
    k = g.rms_norm(k, dim=1) if norms == "qk" else k
    v = g.rms_norm(v, dim=2) if norms == "qv" else v
    return q, k, v


def attention(g: Graph, norms: str, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = normed(g, norms, q, k, v)
    p = g.exp(q @ k)
    return (p / g.reduction(p, 2)) @ v


def rowsum(t: BlockBuilder, p: BlockTensor, how: str, dim: int = 2) -> BlockTensor:
    if how == "accum_last":
        return t.forloop_accum(p, "sum")
    if how == "accum_then_sum":
        return t.reduction(t.forloop_accum(p), dim)
    return t.forloop_accum(t.reduction(p, dim))


def split(
    norms: str = "",
    first: str = "accum_last",
    second: str = "accum_last",
    parts: int = 32,
    loop: int = 2,
    rows: int = 2,
    heads: int = 1,
) -> Body:
    """Keys split over blocks; partial results side by side along the last dim."""

    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def partial(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
            q, k, v = normed(t, norms, q, k, v)
            p = t.exp(q @ k)
            return [(rowsum(t, p, first), on(2, 0, 1)), (t.forloop_accum(p @ v), on(2, 0, 1))]

        def combine(t: BlockBuilder, total: BlockTensor, o: BlockTensor) -> Saved:
            return t.forloop_accum(o, "sum_todimx") / rowsum(t, total, second), on(1, 0)

        reads: list[Read] = [(q, on(None, 0, 1)), (k, on(2, 0), 2), (v, on(1, 0), 1)]
        total, o = kernel(g, (parts, q.shape[0], rows), reads, partial, loop)
        return kernel(g, (2, heads), [(total, on(1, 0)), (o, on(1, 0))], combine, dimx=v.shape[2])

    return body


def one(norms: str = "", first: str = "accum_last", loop: int = 16, columns: int = 4, rows: int = 8) -> Body:
    """Everything in one kernel."""

    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def inner(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> Saved:
            q, k, v = normed(t, norms, q, k, v)
            p = t.exp(q @ k)
            return t.forloop_accum(p @ v) / rowsum(t, p, first), on(1, 2, 0)

        wide = None if norms == "qv" else 2
        columns_ = 1 if norms == "qv" else columns
        reads: list[Read] = [(q, on(1, None, 0)), (k, on(None, None, 0), 2), (v, on(None, wide, 0), 1)]
        return kernel(g, (rows, columns_, q.shape[0]), reads, inner, loop)

    return body


def quotient_outside(first: str = "accum_last", loop: int = 32) -> Body:
    """The division is a kernel of its own."""

    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def inner(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
            p = t.exp(q @ k)
            return [(t.forloop_accum(p @ v), on(0)), (rowsum(t, p, first), on(0))]

        top, total = kernel(g, (q.shape[0],), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], inner, loop)
        return top / total

    return body


def scores_first(inside: bool = False, first: str = "accum_last", loop: int = 8, halves: int = 2) -> Body:
    """Scores are one kernel's result, or their exponentials are; another sums them."""

    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def scores(t: BlockBuilder, q: BlockTensor, k: BlockTensor) -> Saved:
            s = t.forloop_accum(q @ k)
            return (t.exp(s) if inside else s), on(0, 2)

        s = kernel(g, (q.shape[0], halves), [(q, on(0), 2), (k, on(0, 2), 1)], scores, loop)

        def weigh(t: BlockBuilder, s: BlockTensor, v: BlockTensor) -> Saved:
            p = s if inside else t.exp(s)
            return t.forloop_accum(p @ v) / rowsum(t, p, first), on(0, 2)

        return kernel(g, (q.shape[0], halves), [(s, on(0), 2), (v, on(0, 2), 1)], weigh, loop)

    return body


def parts_in_rows(first: str = "accum_last", parts: int = 4, loop: int = 8, second: int = 1) -> Body:
    """One row: partial numerators lie along the dim of rows, partial denominators along the last."""

    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def partial(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
            p = t.exp(q @ k)
            return [(rowsum(t, p, first), on(0, 2)), (t.forloop_accum(p @ v), on(0, 1))]

        total, o = kernel(g, (q.shape[0], parts), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], partial, loop)

        def combine(t: BlockBuilder, total: BlockTensor, o: BlockTensor) -> Saved:
            if second == 1:
                return t.forloop_accum(t.reduction(o, 1) / t.reduction(total, 2)), on(0, 2)
            return t.forloop_accum(t.reduction(o, 1)) / t.forloop_accum(total, "sum"), on(0, 2)

        reads: list[Read] = [(total, on(0), 2), (o, on(0, 2), 1)]
        return kernel(g, (q.shape[0], 2), reads, combine, second)

    return body


def kernel_sums(split: bool = True, loop: int = 8) -> Body:
    """Exponentials are formed in blocks and summed by predefined operators."""

    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def weights(t: BlockBuilder, q: BlockTensor, k: BlockTensor) -> Saved:
            return t.exp(t.forloop_accum(q @ k)), on(0, 2 if split else 1)

        reads: list[Read] = [(q, on(0, None if split else 1), 2), (k, on(0, 2 if split else None), 1)]
        p = kernel(g, (q.shape[0], 2 if split else 1), reads, weights, loop)
        return (p @ v) / g.reduction(p, 2)

    return body


def two_readers(parts: int = 32, loop: int = 2) -> Body:
    """Numerators and denominators are summed by kernels of their own."""

    def body(g: Graph, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def partial(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
            p = t.exp(q @ k)
            return [(t.forloop_accum(p, "sum"), on(2, 0)), (t.forloop_accum(p @ v), on(2, 0))]

        reads: list[Read] = [(q, on(None, 0)), (k, on(2, 0), 2), (v, on(1, 0), 1)]
        total, o = kernel(g, (parts, q.shape[0]), reads, partial, loop)
        rows = (2,)
        top = kernel(g, rows, [(o, on(1))], lambda t, o: (t.forloop_accum(o, "sum_todimx"), on(1)), dimx=v.shape[2])
        return top / kernel(g, rows, [(total, on(1))], lambda t, total: (t.forloop_accum(total, "sum"), on(1)))

    return body


def normalised_parts(g: Graph, q: Tensor, k: Tensor, v: Tensor, parts: int = 16) -> Tensor:
    """Every part is divided by its own denominator, and weighed by it."""

    def partial(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
        p = t.exp(q @ k)
        total = t.forloop_accum(p, "sum")
        return [(t.forloop_accum(p @ v) / total, on(0, 2)), (total, on(0, 2))]

    o, total = kernel(g, (q.shape[0], parts), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], partial, 2)
    b, m, e = q.shape[0], q.shape[1], v.shape[2]
    weights = g.reshape(total / g.reduction(total, 2), b, m, parts, 1)
    return g.reshape(g.reduction(weights * g.reshape(o, b, m, parts, e), 2), b, m, e)


def reshaped_parts(g: Graph, q: Tensor, k: Tensor, v: Tensor, parts: int = 16) -> Tensor:
    """Partial results are summed by predefined operators."""

    def partial(t: BlockBuilder, q: BlockTensor, k: BlockTensor, v: BlockTensor) -> list[Saved]:
        p = t.exp(q @ k)
        return [(t.forloop_accum(p @ v), on(0, 2)), (t.forloop_accum(p, "sum"), on(0, 2))]

    o, total = kernel(g, (q.shape[0], parts), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], partial, 2)
    b, m, e = q.shape[0], q.shape[1], v.shape[2]
    top = g.reduction(g.reshape(o, b, m, parts, e), 2)
    return g.reshape(top, b, m, e) / g.reduction(total, 2)


def candidates(b: int) -> Iterator[tuple[str, Shapes, str, Body]]:
    """Names, inputs, norms and bodies: every form in which search finds attention, and some more."""
    wide = attention_inputs(b)
    for norms in NORMS:
        yield f"program {norms}", wide, norms, lambda g, *t, norms=norms: attention(g, norms, *t)
        for first in SUMS:
            yield f"one {norms} {first}", wide, norms, one(norms, first)
            for second in SUMS:
                body = split(norms, first, second, heads=2 if b > 1 else 1)
                yield f"split {norms} {first} {second}", wide, norms, body
    yield "normalised parts", wide, "", normalised_parts
    yield "reshaped parts", wide, "", reshaped_parts
    yield "two readers", wide, "", two_readers()
    long = decode_inputs(b)
    for first in SUMS:
        yield f"quotient outside {first}", long, "", quotient_outside(first)
        yield f"parts in rows {first}", long, "", parts_in_rows(first)
        yield f"scores first {first}", long, "", scores_first(False, first)
        yield f"exponentials first {first}", long, "", scores_first(True, first)
    yield "kernel sums across blocks", long, "", kernel_sums()
    yield "kernel sums of whole rows", long, "", kernel_sums(split=False)
    yield "a loop over the parts", long, "", parts_in_rows(second=2)


def built(inputs: Shapes, norms: str, body: Body) -> Pair:
    return program(inputs, lambda g, *t: attention(g, norms, *t)), program(inputs, body)


def tiny(case: str) -> tuple[Shapes, Body]:
    """Small extents for each form, with logits around 100."""
    wide: Shapes = {"Q": (2, 4, 2), "K": (2, 2, 8), "V": (2, 8, 2)}
    long: Shapes = {"Q": (2, 1, 4), "K": (2, 4, 8), "V": (2, 8, 2)}
    cases: dict[str, tuple[Shapes, Body]] = {
        "program": (wide, lambda g, *t: attention(g, "", *t)),
        "one": (wide, one(loop=2, columns=2, rows=2)),
        "one, sums behind the loop": (wide, one(first="accum_then_sum", loop=2, columns=2, rows=2)),
        "split": (wide, split(parts=4)),
        "split, one iteration": (wide, split(parts=4, loop=1)),
        "two readers": (wide, two_readers(parts=4)),
        "quotient outside": (long, quotient_outside(loop=4)),
        "scores first": (long, scores_first(loop=2)),
        "exponentials first": (long, scores_first(True, loop=2)),
        "kernel sums across blocks": (long, kernel_sums(loop=2)),
        "kernel sums of whole rows": (long, kernel_sums(split=False, loop=2)),
        "parts in rows": (long, parts_in_rows(parts=4, loop=2)),
        "a loop over the parts": (long, parts_in_rows(parts=4, loop=2, second=2)),
        "normalised parts": (wide, lambda g, q, k, v: normalised_parts(g, q, k, v, parts=2)),
        "reshaped parts": (wide, lambda g, q, k, v: reshaped_parts(g, q, k, v, parts=4)),
    }
    return cases[case]


TINY = (
    "program",
    "one",
    "one, sums behind the loop",
    "split",
    "split, one iteration",
    "two readers",
    "quotient outside",
    "scores first",
    "exponentials first",
    "kernel sums across blocks",
    "kernel sums of whole rows",
    "parts in rows",
    "a loop over the parts",
    "normalised parts",
    "reshaped parts",
)
