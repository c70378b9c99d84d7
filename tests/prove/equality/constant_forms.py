"""Constants as users write them, put into the programs of examples/ in two forms that are equal.

A float is the rational that its shortest decimal text denotes, so that its numerator may have 17 digits with large
prime factors, and squares and roots of it stand in norms.
"""

from __future__ import annotations

import math
import os
import runpy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from unittest.mock import patch

import numpy as np

from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, row_major
from tests.kit.paths import REPOSITORY

K = OpKind
EXAMPLES = REPOSITORY / "examples"

#: What programs scale by, add under roots, and take roots of.
NATURAL: Mapping[str, Fraction] = {
    name: Fraction(repr(float(value)))
    for name, value in {
        **{f"1/sqrt({n})": n**-0.5 for n in (2, 3, 8, 32, 40, 48, 72, 80, 96, 112, 128, 160, 192, 256)},
        "1/3": 1 / 3,
        "1/1.1": 1 / 1.1,
        "0.9": 0.9,
        "1e-5 as float32": np.float32(1e-5),
        "1e-6 as float32": np.float32(1e-6),
        "sqrt(2/pi)": math.sqrt(2 / math.pi),
        "0.044715": 0.044715,
        "1.702": 1.702,
        "ln 2": math.log(2),
        "log2(e)": math.log2(math.e),
    }.items()
}
#: The ends of what a float can be.
EXTREME: Mapping[str, Fraction] = {
    name: Fraction(repr(value))
    for name, value in {
        "least": 5e-324,
        "least normal": 2.2250738585072014e-308,
        "largest": 1.7976931348623157e308,
        "1e-308": 1e-308,
        "1e308": 1e308,
        "subnormal": 1.2345678901234567e-310,
    }.items()
} | {"0.1 in binary": Fraction(0.1), "the least in binary": Fraction(5e-324)}


@dataclass(frozen=True)
class Sample:
    """A program of examples/, at real or reduced extents."""

    name: str
    graph: KernelGraph


#: Reduced extents by real ones, for each file.
_REDUCED: Mapping[str, Mapping[int, int]] = {
    "attn": {4096: 32, 256: 8, 64: 4},
    "decode": {4096: 32, 64: 4},
    "gated_mlp": {4096: 16},
    "lora": {4096: 16, 256: 8},
    "mha": {4096: 32, 256: 8, 64: 4, 128: 8},
    "mla": {},
    "mqa": {4096: 32, 256: 8, 64: 4, 128: 8},
    "ntrans": {4096: 16},
    "qknorm": {4096: 32, 256: 8, 64: 4},
    "rmsnorm": {4096: 16, 6144: 12},
}


@cache
def samples() -> tuple[Sample, ...]:
    """All programs of examples/, real and reduced."""
    found = []
    with patch.dict(os.environ, {"MIRAGE_BATCH": "1"}):
        for path in sorted(EXAMPLES.glob("*.py")):
            names = runpy.run_path(str(path))
            for name in sorted(names):
                if type(names[name]).__name__ == "Graph":
                    graph = names[name].freeze()
                    found.append(Sample(name, graph))
                    if _REDUCED.get(path.stem):
                        found.append(Sample(f"{name}, reduced", _reduced(graph, _REDUCED[path.stem])))
            if path.stem == "mla":
                found.append(Sample("mla, reduced", names["program"](1, rows=4, head=8, latent=6, keys=12).freeze()))
            if path.stem == "decoder_layer":
                sizes = names["Sizes"](hidden=16, heads=4, groups=2, head=4, inner=24, cached=12)
                found.append(Sample("decoder_layer, reduced", names["program"](1, sizes).freeze()))
    return tuple(found)


def _reduced(graph: KernelGraph, extents: Mapping[int, int]) -> KernelGraph:
    inputs = []
    for item in graph.inputs:
        shape = tuple(extents.get(extent, extent) for extent in item.tensor.shape)
        inputs.append(replace(item, tensor=DTensor(shape, item.tensor.dtype), strides=row_major(shape)))
    return replace(graph, inputs=tuple(inputs))


class Feed:
    """Operators between the first input of a program and the program."""

    def __init__(self, graph: KernelGraph) -> None:
        self.graph = graph
        self.last = len(graph.inputs[0].tensor.shape) - 1
        self.ops: list[Op] = []

    def op(self, kind: OpKind, *operands: int, **attrs: object) -> int:
        """The number of one more operator's result."""
        self.ops.append(Op(kind, operands, Attrs(**attrs)))  # type: ignore[arg-type]
        return len(self.graph.inputs) + len(self.ops) - 1

    def scaled(self, x: int, factor: Fraction) -> int:
        """x times a number."""
        return self.op(K.SCALE, x, factor=factor)

    def into(self, number: int) -> KernelGraph:
        """The program with a tensor in place of its first input."""
        first, shift = len(self.graph.inputs), len(self.ops)

        def moved(i: int) -> int:
            return number if i == 0 else i if i < first else i + shift

        ops: list[Op | GraphDefined] = list(self.ops)
        ops += [replace(op, operands=tuple(map(moved, op.operands))) for op in self.graph.ops]
        return replace(self.graph, ops=tuple(ops), outputs=tuple(map(moved, self.graph.outputs)))


#: Writes a constant in front of a program in one form (False) or in an equal one (True).
Form = Callable[[Feed, Fraction, bool], int]


def _scale(f: Feed, c: Fraction, other: bool) -> int:
    """c x is a third of it and two thirds."""
    return f.op(K.ADD, f.scaled(0, c / 3), f.scaled(0, c * Fraction(2, 3))) if other else f.scaled(0, c)


def _scale_in_a_norm(f: Feed, c: Fraction, other: bool) -> int:
    """A norm does not see a positive factor."""
    return f.op(K.RMS_NORM, 0 if other else f.scaled(0, c), dim=f.last)


def _eps(f: Feed, c: Fraction, other: bool) -> int:
    """A norm of c x with c^3 as its eps is one of x with c."""
    return f.op(K.RMS_NORM, f.scaled(0, c) if other else 0, dim=f.last, eps=c**3 if other else c)


def _eps_of_a_layer_norm(f: Feed, c: Fraction, other: bool) -> int:
    return f.op(
        K.LAYER_NORM, f.scaled(0, Fraction(3, 2)) if other else 0, dim=f.last, eps=c * (Fraction(9, 4) ** other)
    )


def _root(f: Feed, c: Fraction, other: bool) -> int:
    """sqrt(c e^x) sqrt(c e^2x) is c sqrt(e^3x)."""
    e = f.op(K.EXP, 0)
    if other:
        return f.scaled(f.op(K.SQRT, f.op(K.MUL, e, f.op(K.SQUARE, e))), c)
    return f.op(K.MUL, f.op(K.SQRT, f.scaled(e, c)), f.op(K.SQRT, f.scaled(f.op(K.SQUARE, e), c)))


def _root_below(f: Feed, c: Fraction, other: bool) -> int:
    """x / sqrt(c^3 sum e^x) is x / sqrt(c sum e^x) / c."""
    total = f.op(K.SUM, f.op(K.EXP, 0), dim=f.last)
    quotient = f.op(K.DIV, 0, f.op(K.SQRT, f.scaled(total, c if other else c**3)))
    return f.scaled(quotient, 1 / c) if other else quotient


#: There is no operator for powers: half-integer ones come from sqrt, square, products and quotients.
FORMS: Mapping[str, Form] = {
    "scale": _scale,
    "scale in a norm": _scale_in_a_norm,
    "eps": _eps,
    "eps of a layer norm": _eps_of_a_layer_norm,
    "power 1/2": _root,
    "power -1/2": _root_below,
}


def written(graph: KernelGraph, form: str, c: Fraction, *, other: bool) -> KernelGraph:
    """A program with a constant in front of it, in one form or in the other."""
    feed = Feed(graph)
    return feed.into(FORMS[form](feed, c, other))
