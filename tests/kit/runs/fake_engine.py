"""Engines for tests of the pipeline: they find known candidates, die, hang or lie, in worker processes.

The program is exp(X W). What the engines share with a test is a directory below the system's temporary one, named like
the program's first input.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from dataclasses import replace
from fractions import Fraction
from itertools import count
from pathlib import Path

from msgspec import structs

from mirage_formal.graph.graph import BlockGraph, GraphDefined, Input, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from mirage_formal.graph.verdict import Candidate, Probable
from mirage_formal.search.bounds import SearchSpace
from mirage_formal.search.engine_interface import SearchCounters, SearchOptions, Unit, UnitResult

UNITS = 6
_NUMBERS = count()


def fresh_name() -> str:
    """A name for a program's first input that no other test uses."""
    return f"X{os.getpid()}_{next(_NUMBERS)}"


def program(name: str = "X") -> KernelGraph:
    """exp(X W) with X[8,8] and W[8,8]."""
    square = DTensor((8, 8), DType.FLOAT16)
    inputs = (Input(name, square, row_major((8, 8))), Input("W", square, row_major((8, 8))))
    return KernelGraph(inputs, (Op(OpKind.MATMUL, (0, 1)), Op(OpKind.EXP, (2,))), (3,))


def fused(given: KernelGraph, rows: int, columns: int, loop: int, *, wrong: bool = False) -> KernelGraph:
    """One kernel with ``rows`` x ``columns`` blocks; the wrong one puts the blocks together transposed."""
    x, y = 0 if rows > 1 else None, 1 if columns > 1 else None
    block = BlockGraph(
        grid=(rows, columns, 1),
        block=(128, 1, 1),
        forloop_range=loop,
        reduction_dimx=64,
        inputs=(
            InputIterator((x, None, None), 1 if loop > 1 else None),
            InputIterator((None, y, None), 0 if loop > 1 else None),
        ),
        ops=(Op(OpKind.MATMUL, (0, 1)), Op(OpKind.ACCUM_SUM, (2,)), Op(OpKind.EXP, (3,))),
        outputs=(OutputSaver(4, (y, x, None) if wrong else (x, y, None)),),
    )
    return replace(given, ops=(GraphDefined((0, 1), block),), outputs=(2,))


def shared(given: KernelGraph) -> Path:
    """The directory that the test and the engine share."""
    path = Path(tempfile.gettempdir()) / f"fake_engine_{given.inputs[0].name}"
    path.mkdir(exist_ok=True)
    return path


def first(given: KernelGraph, what: str) -> bool:
    """Whether this is the first call with ``what`` for a program, over all processes."""
    try:
        (shared(given) / what).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class FakeEngine:
    """Finds fused kernels of every shape, some of them in two units, and the program itself."""

    name = "fake"

    def units(self, program: KernelGraph, space: SearchSpace, options: SearchOptions) -> list[Unit]:
        return [Unit(index, f"unit {index}", str(index)) for index in range(UNITS)]

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        self.before(program, unit.index)
        tally = SearchCounters()
        tally.add("states", 10 + unit.index)
        tally.prune("shape", "block")
        found = [Candidate(graph, self.name) for graph in self.graphs(program, unit.index)]
        accept = options.accept
        assert accept is not None
        good = tuple(c for c in found if not self.honest(unit.index) or isinstance(accept(c), Probable))
        return UnitResult(good, tally.stats())

    def before(self, program: KernelGraph, index: int) -> None:
        """What goes wrong before a unit is searched."""

    def honest(self, index: int) -> bool:
        """Whether candidates of this unit go through the search-time fingerprint."""
        return True

    def graphs(self, program: KernelGraph, index: int) -> list[KernelGraph]:
        extents = (1, 2, 4, 8)
        pairs = [(r, c) for r in extents for c in extents]
        mine = [fused(program, r, c, 1 + index // 2 % 2) for r, c in pairs[index::3]]
        return [*mine, program] if index == 2 else mine


class KilledOnce(FakeEngine):
    """The worker of every unit is killed once."""

    def before(self, program: KernelGraph, index: int) -> None:
        if first(program, f"unit{index}"):
            os.kill(os.getpid(), signal.SIGKILL)


class HangsOnce(FakeEngine):
    """The worker of unit 1 hangs once."""

    def before(self, program: KernelGraph, index: int) -> None:
        if index == 1 and first(program, "hang"):
            time.sleep(600)


class Poison(FakeEngine):
    """The worker of unit 1 dies in every try, until the test leaves a file called cured."""

    def before(self, program: KernelGraph, index: int) -> None:
        if index == 1 and not (shared(program) / "cured").exists():
            os.kill(os.getpid(), signal.SIGKILL)


class Slow(FakeEngine):
    """Units from 2 on leave a file called waiting and their number, and wait until the test leaves one called go."""

    def before(self, program: KernelGraph, index: int) -> None:
        if index >= 2:
            (shared(program) / f"waiting{index}").touch()
        while index >= 2 and not (shared(program) / "go").exists():
            time.sleep(0.02)


class Straggling(FakeEngine):
    """The first try of the last unit waits until the test leaves a file called go."""

    def before(self, program: KernelGraph, index: int) -> None:
        if index == UNITS - 1 and first(program, "straggling"):
            while not (shared(program) / "go").exists():
                time.sleep(0.02)


class Wrong(FakeEngine):
    """Unit 0 finds a wrong graph; the search-time fingerprint refuses it."""

    def graphs(self, program: KernelGraph, index: int) -> list[KernelGraph]:
        wrong = [fused(program, 2, 2, 1, wrong=True)] if index == 0 else []
        return [*wrong, *super().graphs(program, index)]


class Liar(Wrong):
    """Unit 0 finds a wrong graph and proposes it without asking."""

    def honest(self, index: int) -> bool:
        return index != 0


class Foreign(FakeEngine):
    """Proposes a graph whose tensors are no part of the program's abstract expression, though it computes the same."""

    def graphs(self, program: KernelGraph, index: int) -> list[KernelGraph]:
        # (X + X - X) W has a tensor X + X that is no part of exp(X W).
        doubled = (Op(OpKind.ADD, (0, 0)), Op(OpKind.SUB, (2, 0)), Op(OpKind.MATMUL, (3, 1)), Op(OpKind.EXP, (4,)))
        return [replace(program, ops=doubled, outputs=(5,)), program] if index == 0 else []


def roots(name: str = "X") -> KernelGraph:
    """The root of (X + W)^2 (X + W)^2, which is not known to be (X + W)^2, and 1 / |X + W|, elementwise."""
    ops = (Op(OpKind.ADD, (0, 1)), Op(OpKind.MUL, (2, 2)), Op(OpKind.MUL, (3, 3)), Op(OpKind.SQRT, (4,)))
    rest = (Op(OpKind.ABS, (2,)), Op(OpKind.RECIPROCAL, (6,)))
    return replace(program(name), ops=(*ops, *rest), outputs=(5, 7))


class Unproved(FakeEngine):
    """For ``roots``: (X + W)^2 for the first output, which is right and not proved, and the program."""

    def graphs(self, program: KernelGraph, index: int) -> list[KernelGraph]:
        ops = (Op(OpKind.ADD, (0, 1)), Op(OpKind.MUL, (2, 2)), Op(OpKind.ABS, (2,)), Op(OpKind.RECIPROCAL, (4,)))
        return [replace(program, ops=ops, outputs=(3, 5)), program] if index == 0 else []


def largest(name: str = "X") -> KernelGraph:
    """Largest element of each row of X W: an operator without a picture in a finite field."""
    given = program(name)
    return replace(given, ops=(given.ops[0], Op(OpKind.MAX, (2,), Attrs(dim=1))), outputs=(3,))


def nowhere(name: str = "X") -> KernelGraph:
    """sqrt(X - W) + sqrt(W - X): in a finite field whose primes are 3 modulo 4 it has a value where X = W alone."""
    ops = (Op(OpKind.SUB, (0, 1)), Op(OpKind.SUB, (1, 0)), Op(OpKind.SQRT, (2,)), Op(OpKind.SQRT, (3,)))
    return replace(program(name), ops=(*ops, Op(OpKind.ADD, (4, 5))), outputs=(6,))


class Eager(FakeEngine):
    """Proposes the program without asking for a search-time fingerprint."""

    def honest(self, index: int) -> bool:
        return False

    def graphs(self, program: KernelGraph, index: int) -> list[KernelGraph]:
        return [program] if index == 0 else []


def doubled() -> KernelGraph:
    """2 X, for candidates with conditions that it does not have."""
    square = DTensor((8, 8), DType.FLOAT16)
    inputs = (Input("X", square, row_major((8, 8))), Input("W", square, row_major((8, 8))))
    return KernelGraph(inputs, (Op(OpKind.ADD, (0, 0)),), (2,))


def adding() -> KernelGraph:
    """Of ``doubled``: 2 (X W / W), which needs W to be nowhere 0."""
    ops = (Op(OpKind.MUL, (0, 1)), Op(OpKind.DIV, (2, 1)), Op(OpKind.ADD, (3, 3)))
    return replace(doubled(), ops=ops, outputs=(4,))


def vacuous() -> KernelGraph:
    """Of ``doubled``: 2 (X d / d) for d = relu(sigmoid(W) - 1), which is 0 everywhere."""
    ops = (
        Op(OpKind.SIGMOID, (1,)),
        Op(OpKind.SHIFT, (2,), Attrs(shift=Fraction(-1))),
        Op(OpKind.RELU, (3,)),
        Op(OpKind.MUL, (0, 4)),
        Op(OpKind.DIV, (5, 4)),
        Op(OpKind.ADD, (6, 6)),
    )
    return replace(doubled(), ops=ops, outputs=(7,))


class Talking(FakeEngine):
    """Unit 2 visits states without an end, until the test leaves a file called go; what it returns has none of them."""

    def before(self, program: KernelGraph, index: int) -> None:
        tally = SearchCounters()
        while index == 2 and not (shared(program) / "go").exists():
            tally.step("states")
            tally.prune("talk", "block")
            time.sleep(0.001)


class Counting(FakeEngine):
    """Unit 2 visits states until the test leaves a file called go, and they are among those that it returns."""

    def run(self, program: KernelGraph, space: SearchSpace, options: SearchOptions, unit: Unit) -> UnitResult:
        found = super().run(program, space, options, unit)
        tally = SearchCounters()
        while unit.index == 2 and not (shared(program) / "go").exists():
            tally.step("states")
            time.sleep(0.001)
        return structs.replace(found, stats=found.stats + tally.stats())
