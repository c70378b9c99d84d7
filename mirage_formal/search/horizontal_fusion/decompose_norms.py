"""Decomposition of norms into primitive operators, and guided search of a program with and without it.

A root mean square norm with eps is one operator in a block, so the block has to read whole rows. Decomposed, it is the
quotient of x and sqrt(mean(x^2) + eps): beside a product of x, a block sums x^2 in its loop and divides behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from typing import Final

import msgspec

from mirage_formal.graph.graph import KernelGraph, Op, operators
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor
from mirage_formal.rewrite.graph_builders import GraphBuilder, KernelGraphBuilder
from mirage_formal.rewrite.replacement_rules import apply_rules
from mirage_formal.search.engine_interface import SearchOptions, Unit, UnitResult
from mirage_formal.search.guided.guided_engine import GuidedEngine
from mirage_formal.search.space import SearchSpace
from mirage_formal.support.errors import UnsupportedError

#: Prefix of the payload of a unit that searches the decomposed program.
_MARK: Final = "written out: "


def decompose_norms(program: KernelGraph) -> KernelGraph | None:
    """Return the program with every norm with eps decomposed into mean, shift, root and quotient; None if not useful.

    Decomposition is useful if there are such norms and products: without a product, a norm is as good as one operator.

    Sound: by definition a norm is x / sqrt(mean(x^2) + eps), times the weight where it has one. What is found for the
    result is a candidate for the program itself and proved for it.
    """
    if not all(isinstance(op, Op) for op in program.ops):
        return None
    new = KernelGraphBuilder(program.inputs, share=())
    number = apply_rules(new, program.ops, _decompose_rms_norm)
    if len(new.ops) == len(program.ops) or all(op.kind is not OpKind.MATMUL for op in operators(program)):
        return None
    return new.finish([number[n] for n in program.outputs])


def _decompose_rms_norm(new: GraphBuilder[DTensor], op: Op, operands: Sequence[int]) -> int | None:
    if op.kind is not OpKind.RMS_NORM or op.attrs.eps is None:
        return None
    x, *weights = operands
    mean = new.emit(OpKind.MEAN, new.emit(OpKind.SQUARE, x), attrs=Attrs(dim=op.attrs.dim))
    root = new.emit(OpKind.SQRT, new.emit(OpKind.SHIFT, mean, attrs=Attrs(shift=op.attrs.eps)))
    return reduce(partial(new.emit, OpKind.MUL), weights, new.emit(OpKind.DIV, x, root))


class NormDecompositionEngine:
    """Guided engine on a program and on the program with decomposed norms, each with units of its own.

    The decomposed program is searched for single kernels only. A space's limit on the operators of a block counts those
    that take the place of a norm as one.

    Args:
        best: As of the guided engine.
    """

    name = "guided"

    def __init__(self, best: int | None = 6) -> None:
        self._guided = GuidedEngine(best)

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        """Return the guided engine's units for the program and, if there is one, for the program with decomposed norms.

        Raises:
            UnsupportedError: The program is outside the guided engine.
        """
        units = self._guided.units(program, space, options)
        longer = decompose_norms(program)
        if longer is not None:
            space, options = _bounds_of_decomposed(program, longer, space, options)
            with suppress(UnsupportedError):  # written out it may have no normal form, though it has one as it is
                (one,) = self._guided.units(longer, space, options)
                units.append(Unit(len(units), "one kernel, norms written out", f"{_MARK}{one.payload}"))
        return units

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        """Run one unit."""
        if not unit.payload.startswith(_MARK):
            return self._guided.run(program, space, options, unit)
        longer = decompose_norms(program)
        assert longer is not None
        space, options = _bounds_of_decomposed(program, longer, space, options)
        own = msgspec.structs.replace(unit, payload=unit.payload.removeprefix(_MARK))
        return self._guided.run(longer, space, options, own)


def _bounds_of_decomposed(
    program: KernelGraph, longer: KernelGraph, space: SearchSpace, options: SearchOptions
) -> tuple[SearchSpace, SearchOptions]:
    """Return the space and options for a program with decomposed norms."""
    space, options = options.bounded(space), msgspec.structs.replace(options, max_kernel_ops=None, max_block_ops=None)
    most = space.max_block_ops + len(longer.ops) - len(program.ops)
    return replace(space, max_kernel_ops=1, max_graph_defined=1, max_block_ops=most), options


__all__ = ["NormDecompositionEngine", "decompose_norms"]
