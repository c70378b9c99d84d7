"""Attention in every form in which search finds it, and in some more, without a running maximum."""

from __future__ import annotations

from tests.kit.proofs.claims import kernel, on, program

NORMS = ("", "qk", "qv")
SUMS = ("accum_last", "accum_then_sum", "sum_then_accum")


def attention_inputs(b=1, m=256, d=64, n=4096, e=64):
    return {"Q": (2 * b, m, d), "K": (2 * b, d, n), "V": (2 * b, n, e)}


def decode_inputs(b=1, d=128, n=4096):
    return {"Q": (64 * b, 1, d), "K": (64 * b, d, n), "V": (64 * b, n, d)}


def normed(g, norms, q, k, v):
    q = g.rms_norm(q, dim=2) if norms else q
    k = g.rms_norm(k, dim=1) if norms == "qk" else k
    v = g.rms_norm(v, dim=2) if norms == "qv" else v
    return q, k, v


def attention(g, norms, q, k, v):
    q, k, v = normed(g, norms, q, k, v)
    p = g.exp(q @ k)
    return (p / g.reduction(p, 2)) @ v


def rowsum(t, p, how, dim=2):
    if how == "accum_last":
        return t.forloop_accum(p, "sum")
    if how == "accum_then_sum":
        return t.reduction(t.forloop_accum(p), dim)
    return t.forloop_accum(t.reduction(p, dim))


def split(norms="", first="accum_last", second="accum_last", parts=32, loop=2, rows=2, heads=1):
    """Keys split over blocks; partial results side by side along the last dim."""

    def body(g, q, k, v):
        def partial(t, q, k, v):
            q, k, v = normed(t, norms, q, k, v)
            p = t.exp(q @ k)
            return [(rowsum(t, p, first), on(2, 0, 1)), (t.forloop_accum(p @ v), on(2, 0, 1))]

        def combine(t, total, o):
            return t.forloop_accum(o, "sum_todimx") / rowsum(t, total, second), on(1, 0)

        reads = [(q, on(None, 0, 1)), (k, on(2, 0), 2), (v, on(1, 0), 1)]
        total, o = kernel(g, (parts, q.shape[0], rows), reads, partial, loop)
        return kernel(g, (2, heads), [(total, on(1, 0)), (o, on(1, 0))], combine, dimx=v.shape[2])

    return body


def one(norms="", first="accum_last", loop=16, columns=4, rows=8):
    """Everything in one kernel."""

    def body(g, q, k, v):
        def inner(t, q, k, v):
            q, k, v = normed(t, norms, q, k, v)
            p = t.exp(q @ k)
            return t.forloop_accum(p @ v) / rowsum(t, p, first), on(1, 2, 0)

        wide = None if norms == "qv" else 2
        columns_ = 1 if norms == "qv" else columns
        reads = [(q, on(1, None, 0)), (k, on(None, None, 0), 2), (v, on(None, wide, 0), 1)]
        return kernel(g, (rows, columns_, q.shape[0]), reads, inner, loop)

    return body


def quotient_outside(first="accum_last", loop=32):
    """The division is a kernel of its own."""

    def body(g, q, k, v):
        def inner(t, q, k, v):
            p = t.exp(q @ k)
            return [(t.forloop_accum(p @ v), on(0)), (rowsum(t, p, first), on(0))]

        top, total = kernel(g, (q.shape[0],), [(q, on(0)), (k, on(0), 2), (v, on(0), 1)], inner, loop)
        return top / total

    return body


def scores_first(inside=False, first="accum_last", loop=8, halves=2):
    """Scores are one kernel's result, or their exponentials are; another sums them."""

    def body(g, q, k, v):
        def scores(t, q, k):
            s = t.forloop_accum(q @ k)
            return (t.exp(s) if inside else s), on(0, 2)

        s = kernel(g, (q.shape[0], halves), [(q, on(0), 2), (k, on(0, 2), 1)], scores, loop)

        def weigh(t, s, v):
            p = s if inside else t.exp(s)
            return t.forloop_accum(p @ v) / rowsum(t, p, first), on(0, 2)

        return kernel(g, (q.shape[0], halves), [(s, on(0), 2), (v, on(0, 2), 1)], weigh, loop)

    return body


def parts_in_rows(first="accum_last", parts=4, loop=8, second=1):
    """One row: partial numerators lie along the dim of rows, partial denominators along the last."""

    def body(g, q, k, v):
        def partial(t, q, k, v):
            p = t.exp(q @ k)
            return [(rowsum(t, p, first), on(0, 2)), (t.forloop_accum(p @ v), on(0, 1))]

        total, o = kernel(g, (q.shape[0], parts), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], partial, loop)

        def combine(t, total, o):
            if second == 1:
                return t.forloop_accum(t.reduction(o, 1) / t.reduction(total, 2)), on(0, 2)
            return t.forloop_accum(t.reduction(o, 1)) / t.forloop_accum(total, "sum"), on(0, 2)

        reads = [(total, on(0), 2), (o, on(0, 2), 1)]
        return kernel(g, (q.shape[0], 2), reads, combine, second)

    return body


def kernel_sums(split=True, loop=8):
    """Exponentials are formed in blocks and summed by predefined operators."""

    def body(g, q, k, v):
        def weights(t, q, k):
            return t.exp(t.forloop_accum(q @ k)), on(0, 2 if split else 1)

        reads = [(q, on(0, None if split else 1), 2), (k, on(0, 2 if split else None), 1)]
        p = kernel(g, (q.shape[0], 2 if split else 1), reads, weights, loop)
        return (p @ v) / g.reduction(p, 2)

    return body


def two_readers(parts=32, loop=2):
    """Numerators and denominators are summed by kernels of their own."""

    def body(g, q, k, v):
        def partial(t, q, k, v):
            p = t.exp(q @ k)
            return [(t.forloop_accum(p, "sum"), on(2, 0)), (t.forloop_accum(p @ v), on(2, 0))]

        reads = [(q, on(None, 0)), (k, on(2, 0), 2), (v, on(1, 0), 1)]
        total, o = kernel(g, (parts, q.shape[0]), reads, partial, loop)
        rows = (2,)
        top = kernel(g, rows, [(o, on(1))], lambda t, o: (t.forloop_accum(o, "sum_todimx"), on(1)), dimx=v.shape[2])
        return top / kernel(g, rows, [(total, on(1))], lambda t, total: (t.forloop_accum(total, "sum"), on(1)))

    return body


def normalised_parts(g, q, k, v, parts=16):
    """Every part is divided by its own denominator, and weighed by it."""

    def partial(t, q, k, v):
        p = t.exp(q @ k)
        total = t.forloop_accum(p, "sum")
        return [(t.forloop_accum(p @ v) / total, on(0, 2)), (total, on(0, 2))]

    o, total = kernel(g, (q.shape[0], parts), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], partial, 2)
    b, m, e = q.shape[0], q.shape[1], v.shape[2]
    weights = g.reshape(total / g.reduction(total, 2), b, m, parts, 1)
    return g.reshape(g.reduction(weights * g.reshape(o, b, m, parts, e), 2), b, m, e)


def reshaped_parts(g, q, k, v, parts=16):
    """Partial results are summed by predefined operators."""

    def partial(t, q, k, v):
        p = t.exp(q @ k)
        return [(t.forloop_accum(p @ v), on(0, 2)), (t.forloop_accum(p, "sum"), on(0, 2))]

    o, total = kernel(g, (q.shape[0], parts), [(q, on(0)), (k, on(0, 2), 2), (v, on(0, 1), 1)], partial, 2)
    b, m, e = q.shape[0], q.shape[1], v.shape[2]
    top = g.reduction(g.reshape(o, b, m, parts, e), 2)
    return g.reshape(top, b, m, e) / g.reduction(total, 2)


def candidates(b):
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


def built(inputs, norms, body):
    return program(inputs, lambda g, *t: attention(g, norms, *t)), program(inputs, body)


def tiny(case):
    """Small extents for each form, with logits around 100."""
    wide = {"Q": (2, 4, 2), "K": (2, 2, 8), "V": (2, 8, 2)}
    long = {"Q": (2, 1, 4), "K": (2, 4, 8), "V": (2, 8, 2)}
    return {
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
        "normalised parts": (wide, lambda g, *t: normalised_parts(g, *t, parts=2)),
        "reshaped parts": (wide, lambda g, *t: reshaped_parts(g, *t, parts=4)),
    }[case]


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
