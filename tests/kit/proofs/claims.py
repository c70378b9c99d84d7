"""The kit of the corpora tests/prove and tests/refute: pairs of a program and a candidate, each built by one function.

A claim is a function whose keyword defaults are real extents; the decorator takes the extents that make it small, so
that float64 decides the small pair in a millisecond.

    @claim(b=2, k=4, n=6)
    def the_division_comes_last(b=16, k=4096, n=6144):
        return pair(
            {"X": (b, k), "W": (k, n)},
            lambda g, x, w: g.rms_norm(x) @ w,
            lambda g, x, w: (x @ w) / g.sqrt(g.mean(g.square(x), 1)),
        )
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import overload

import numpy as np

import mirage_formal as mf
from mirage_formal import BlockTensor, Graph, Tensor
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DimMap, DTensor, DType
from mirage_formal.semantics import float64_reference
from mirage_formal.semantics.function_table import FUNCTION_SPECS, Reals
from tests.kit.paths import REPOSITORY

HERE = REPOSITORY / "tests"
BLOCK = (128, 1, 1)

Pair = tuple[KernelGraph, KernelGraph]
Shapes = Mapping[str, tuple[int, ...]]  # of inputs, by name; a Mask is that of a mask
Read = tuple[Tensor, DimMap] | tuple[Tensor, DimMap, int | None]  # a tensor, its imap, its fmap
Saved = tuple[BlockTensor, DimMap]  # what a block writes, and its omap


class Mask(tuple[int, ...]):
    """The shape of an input that is a mask of booleans."""

    __slots__ = ()

    def __new__(cls, *extents: int) -> Mask:
        return super().__new__(cls, extents)


@dataclass(frozen=True)
class Claim:
    """A pair at real extents, and at small ones.

    Attributes:
        name: Module and function, as in ``norm.gamma_folded_into_the_weight``.
        build: The function; every parameter has a default.
        small: Arguments that make it small.
        positive: Whether inputs must be positive for both sides to be defined.
        negative: Whether they must be negative.
    """

    name: str
    build: Callable[..., Pair]
    small: Mapping[str, object]
    positive: bool
    negative: bool

    def real(self) -> Pair:
        """The pair at real extents."""
        return self.build()

    def tiny(self) -> Pair:
        """The pair at small extents."""
        return self.build(**self.small)


def claim(*, positive: bool = False, negative: bool = False, **small: object) -> Callable[[Callable[..., Pair]], Claim]:
    """Makes a claim of a function; the keywords are its small extents."""

    def made(build: Callable[..., Pair]) -> Claim:
        family = build.__module__.rpartition(".")[2]
        return Claim(f"{family}.{build.__name__}", build, dict(small), positive, negative)

    return made


def of_functions(
    family: str, build: Callable[..., Pair], kinds: Sequence[tuple[OpKind, ...]], name: str
) -> tuple[Claim, ...]:
    """Claims about functions of one element, one for each tuple of them.

    Args:
        family: The module.
        build: Takes the functions, the first of which are given, and the extents a and n.
        kinds: The functions.
        name: The claims' name, with {0} for the first function and {1} for the second.
    """
    partly = {kind for kind, row in FUNCTION_SPECS.items() if row.domain is not Reals.ALL}
    return tuple(
        Claim(
            f"{family}.{name.format(*each)}",
            partial(build, *each),
            {"a": 2, "n": 3},
            not partly.isdisjoint(each),
            False,
        )
        for each in kinds
    )


def program(inputs: Mapping[str, Sequence[int]], body: Callable[..., object]) -> KernelGraph:
    """A frozen program: ``body`` takes the graph and one tensor per input and returns its output or outputs."""
    graph = mf.new_kernel_graph()
    tensors = [
        graph.new_input(dims=tuple(dims), name=name, dtype="bool" if isinstance(dims, Mask) else "float16")
        for name, dims in inputs.items()
    ]
    found = body(graph, *tensors)
    for output in found if isinstance(found, tuple | list) else (found,):
        graph.mark_output(output)
    return graph.freeze()


def pair(inputs: Mapping[str, Sequence[int]], left: Callable[..., object], right: Callable[..., object]) -> Pair:
    """A program and a candidate on the same inputs."""
    return program(inputs, left), program(inputs, right)


def on(x: int | None = None, y: int | None = None, z: int | None = None) -> DimMap:
    """A map of grid axes to dims: ``on(x=1)`` splits dim 1 by x and replicates along the others."""
    return (x, y, z)


@overload
def kernel(
    graph: Graph,
    grid: Sequence[int],
    reads: Sequence[Read],
    body: Callable[..., Saved],
    loop: int = 1,
    dimx: int = 64,
) -> Tensor: ...


@overload
def kernel(
    graph: Graph,
    grid: Sequence[int],
    reads: Sequence[Read],
    body: Callable[..., list[Saved]],
    loop: int = 1,
    dimx: int = 64,
) -> list[Tensor]: ...


def kernel(
    graph: Graph,
    grid: Sequence[int],
    reads: Sequence[Read],
    body: Callable[..., Saved | list[Saved]],
    loop: int = 1,
    dimx: int = 64,
) -> Tensor | list[Tensor]:
    """A graph-defined kernel.

    Args:
        graph: The program under construction.
        grid: Blocks along x, y, z; trailing ones may be left out.
        reads: For each tensor read (tensor, imap) or (tensor, imap, fmap).
        body: Takes the block graph and one tile per tensor; returns (tile, omap), or a list of them.
        loop: Iterations.
        dimx: Extent that sums to dimx keep.

    Returns:
        The tensor it writes, or a list of them.
    """
    block = mf.new_threadblock_graph(grid_dim=grid, block_dim=BLOCK, forloop_range=loop, reduction_dimx=dimx)
    tiles = [block.new_input(item[0], item[1], item[2] if len(item) > 2 else None) for item in reads]
    saved = body(block, *tiles)
    for tile, omap in saved if isinstance(saved, list) else [saved]:
        block.new_output(tile, omap)
    made = graph.customized([item[0] for item in reads], block)
    return made if isinstance(saved, list) else made[0]


def modules(corpus: str) -> list[ModuleType]:
    """The modules of ``prove`` or ``refute``, which are no package: families of both have equal file names."""
    found = []
    for path in sorted((HERE / corpus).glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"{corpus}.{path.stem}", path)
        assert spec is not None and spec.loader is not None  # noqa: PT018
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found.append(module)
    return found


@cache
def load(corpus: str) -> tuple[Claim, ...]:
    """All claims of ``prove`` or ``refute``, in the order of files and lines; a tuple of claims is one line."""
    found = (item for module in modules(corpus) for item in vars(module).values())
    each = (one for item in found for one in (item if isinstance(item, tuple) else (item,)))
    return tuple(one for one in each if isinstance(one, Claim))


def points(
    graph: KernelGraph, seed: int, count: int = 3, positive: bool = False, negative: bool = False
) -> list[list[np.ndarray]]:
    """Random inputs of moderate scale; those of masks are 0 and 1."""
    numbers = np.random.default_rng(seed)

    def drawn(tensor: DTensor) -> np.ndarray:
        if tensor.dtype is DType.BOOL:
            return numbers.integers(0, 2, tensor.shape).astype(np.float64)
        if positive or negative:
            return numbers.uniform(0.3, 1.6, tensor.shape) * (1 if positive else -1)
        return numbers.normal(0, 0.8, tensor.shape)

    return [[drawn(source.tensor) for source in graph.inputs] for _ in range(count)]


def gap(left: KernelGraph, right: KernelGraph, inputs: Sequence[np.ndarray]) -> float:
    """Largest relative difference of the outputs in float64; nan where a value is not finite."""
    largest = 0.0
    for a, b in zip(float64_reference.run(left, inputs), float64_reference.run(right, inputs), strict=True):
        assert a.shape == b.shape
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return float("nan")
        largest = max(largest, float(np.abs(a - b).max() / max(1.0, np.abs(a).max())))
    return largest
