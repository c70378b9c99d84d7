"""Kernels by their lowering, and what becomes of their mutants: the claim's verdict beside a run on random inputs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.codegen.generate import NO_SCHEDULES, generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.online_softmax.stabilize import stable_form
from mirage_formal.codegen.planning.planner import make_plan, schedules
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.translation_validation.realization import Realizes, decide_realizes
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.storage_views import storage_locations
from mirage_formal.graph.types import Band, DTensor, DType, Shape, row_major
from mirage_formal.graph.verdict import Unknown
from mirage_formal.semantics.float64_reference import run as reference
from mirage_formal.support.errors import MirageError
from tests.kit.graphs.text_reader import from_text
from tests.kit.kernels import band_graphs, example_kernels, masked_attention, program_mutants, tails
from tests.kit.kernels.example_kernels import TARGET, inputs_for, laid_out
from tests.kit.kernels.program_interpreter import watched
from tests.kit.kernels.program_mutants import Mutant, Touched

K = OpKind
#: Largest error, relative to the largest wanted value, of a Program that computes the same.
SAME: Final = 0.05
#: What float16 holds by far.
_LARGE: Final = 3e4
#: Draws of inputs: seed, scale, and the least value where all are positive.
DRAWS: Final = ((1, 0.3, None), (2, 0.1, 0.05))


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel of one lowering.

    Attributes:
        lowering: How it is lowered.
        name: Its name.
        graph: A µGraph of one launched kernel.
        kernel: The kernel.
    """

    lowering: str
    name: str
    graph: KernelGraph
    kernel: GeneratedKernel


class Outcome(StrEnum):
    """What becomes of a mutant: the verdict, and whether a run shows a difference."""

    #: The claim holds, and no run shows a difference.
    KEPT = "accepted, same"
    #: The claim holds of a Program that is not safe; that is not what it says.
    UNSAFE = "accepted, unsafe"
    #: The claim holds, and all runs leave float32: over the reals there is no difference, such as exp(x) / sum exp(x).
    OVERFLOWS = "accepted, overflows"
    #: The claim holds of a safe Program that computes something else.
    WRONG = "accepted, different"
    DEVIATES = "deviates"
    #: The claim fails, though a run shows no difference: it may be of rounding's size, or none over the reals.
    DEVIATES_SAME = "deviates, same"
    #: Nothing is said of a Program that a run shows to be unsafe.
    UNKNOWN_UNSAFE = "unknown, unsafe"
    UNKNOWN = "unknown"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Row:
    """One mutant and its outcome.

    Attributes:
        case: The kernel that it is a mutant of.
        mutant: The mutant.
        outcome: What became of it.
        said: The verdict's reason, the fault or the error, for people.
    """

    case: Case
    mutant: Mutant
    outcome: Outcome
    said: str


# --- kernels by lowering ---------------------------------------------------------------------------------------------


def one_kernel(graph: KernelGraph, chosen: Any = NO_SCHEDULES) -> GeneratedKernel:
    """Return the one kernel that a µGraph launches."""
    (kernel,) = generate(graph, TARGET, chosen).steps
    assert isinstance(kernel, GeneratedKernel)
    return kernel


def single(graph: KernelGraph) -> KernelGraph:
    """Return a µGraph with inputs of float32 in place of narrower ones."""
    inputs = [
        replace(item, tensor=DTensor(item.tensor.shape, DType.FLOAT32)) if item.tensor.dtype.floating else item
        for item in graph.inputs
    ]
    return replace(graph, inputs=tuple(inputs))


def operator(kind: OpKind, attrs: Attrs, shapes: Sequence[Shape], dtype: DType = DType.FLOAT16) -> KernelGraph:
    """Return a µGraph of one predefined operator."""
    masks = [kind is K.LOGICAL_NOT or (kind is K.SELECT and i == 0) for i in range(len(shapes))]
    inputs = [
        Input(f"x{i}", DTensor(shape, DType.BOOL if mask else dtype), row_major(shape))
        for i, (shape, mask) in enumerate(zip(shapes, masks, strict=True))
    ]
    return KernelGraph(tuple(inputs), (Op(kind, tuple(range(len(shapes))), attrs),), (len(shapes),))


def _predefined() -> Iterator[tuple[str, KernelGraph]]:
    shape, row = (17, 40), (17, 1)
    for dim in (0, 1):
        yield f"sum {dim}", operator(K.SUM, Attrs(dim=dim), [shape])
        yield f"max {dim}", operator(K.MAX, Attrs(dim=dim), [shape])
        yield f"softmax {dim}", operator(K.SOFTMAX, Attrs(dim=dim), [shape])
        yield f"concat {dim}", operator(K.CONCAT, Attrs(dim=dim), [shape, shape])
        yield f"pad {dim}", operator(K.PAD, Attrs(dim=dim, before=3, after=5), [shape])
        yield f"slice {dim}", operator(K.SLICE, Attrs(dim=dim, start=5, stop=15), [shape])
        yield (
            f"layer norm {dim}",
            operator(
                K.LAYER_NORM,
                Attrs(dim=dim, eps=Fraction(1, 100)),
                [shape, (1, 40) if dim else row, (1, 40) if dim else row],
            ),
        )
    yield "rms norm", operator(K.RMS_NORM, Attrs(dim=1, eps=Fraction(1, 100)), [shape, row])
    yield "transpose", operator(K.TRANSPOSE, Attrs(perm=(2, 0, 1)), [(5, 8, 24)], DType.FLOAT32)
    yield "mul", operator(K.MUL, Attrs(), [shape, row])
    yield "silu", operator(K.SILU, Attrs(), [(7, 9, 8)])
    yield "select", operator(K.SELECT, Attrs(), [shape, shape, row], DType.FLOAT32)
    yield "repeat", operator(K.REPEAT, Attrs(dim=1, times=16), [row])


#: Kernels of examples, by lowering.
_EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "attention": ("attn-b8", "attn-b1", "decode-b8"),
    "tiles": ("gated_mlp-b8", "lora-b8", "rmsnorm-b1", "ntrans-b8"),
}


def _graphs() -> Iterator[tuple[str, str, KernelGraph]]:
    known = example_kernels.fastest()
    for lowering, names in _EXAMPLES.items():
        for name in names:
            for i, graph in enumerate(example_kernels.kernels(known[name])):
                yield lowering, f"{name}/{i}", graph
    for name in ("attn-b1", "decode-b16", "qk-b8", "qv-b1"):
        for i, graph in enumerate(example_kernels.kernels(stable_form(known[name]))):
            yield "online softmax", f"{name}/{i}", graph
    for name in ("attn-b8", "gated_mlp-b1"):
        yield "float32", name, single(example_kernels.kernels(known[name])[0])
    yield "float32", "product", single(tails.product(16, 64, 32, (16, 16, 32), K.EXP)[1])
    yield "remainders", "product", tails.product(13, 40, 21, (16, 16, 16), K.SILU)[1]
    yield "remainders", "chain", tails.chain((10, 50), (16, 64), (2, 2))[1]
    yield "remainders", "quotients", tails.quotients((13, 40), 8)[1]
    yield "remainders", "float32", single(tails.product(13, 40, 21, (16, 16, 16))[1])
    for seed in (1, 4, 6, 11):
        yield "remainders", f"drawn {seed}", tails.drawn(seed)[1]
    yield "masks", "fused", masked_attention.fused(DType.FLOAT16)
    for text, name in ((band_graphs.FLASH, "flash"), (band_graphs.PADDED, "padded"), (band_graphs.SELECTION, "select")):
        band = band_graphs.bounds(Band(-20, 7))
        yield (
            "masks",
            name,
            from_text(
                text.format(rows=32, columns=64, grid=2, loop=2, band=band, value=0, more_rows=0, more_columns=0)
                if name != "padded"
                else text.format(rows=28, columns=56, grid=2, loop=2, band=band, more_rows=4, more_columns=8)
            ),
        )
    yield "masks", "two", from_text(band_graphs.TWO.format(band="[-,0]", other="[3,-]"))
    for name, graph in _predefined():
        yield "predefined", name, graph


@cache
def cases() -> tuple[Case, ...]:
    """Return all kernels: each with the schedule that comes first, and some with others."""
    found = [Case(lowering, name, graph, one_kernel(graph)) for lowering, name, graph in _graphs()]
    for case in list(found):
        if case.name in ("gated_mlp-b8/0", "attn-b8/0", "product", "fused"):
            found += _other_schedules(case)
    return (*found, *_warpgroups())


def _warpgroups() -> Iterator[Case]:
    """Yield kernels with products of warpgroups: of tiles of 64 rows, of 16 rows and of two of 64, and attention."""
    graphs = {
        "64 rows": tails.product(64, 128, 128, (64, 64, 64), K.SILU)[1],
        "16 rows": tails.product(16, 128, 128, (16, 64, 64), K.EXP)[1],
        "blocks": tails.product(128, 128, 64, (64, 64, 64))[1],
        "attention": example_kernels.kernels(stable_form(example_kernels.fastest()["attn-b1"]))[0],
    }
    for name, graph in graphs.items():
        at = one_kernel(graph).operator
        found = [one for one in schedules(graph, at, TARGET) if any(warps.warpgroup for warps in one.warps)]
        by_warps = {one.warps: one for one in reversed(found)}.values()
        chosen = [one for one in by_warps if name != "attention" or not any(warps.transposed for warps in one.warps)]
        for number, schedule in enumerate(chosen):
            yield Case("warpgroups", f"{name}/{number}", graph, one_kernel(graph, {at: schedule}))


def _other_schedules(case: Case) -> Iterator[Case]:
    """Yield the kernel with fewer stages, cut iterations, and element by element."""
    at = case.kernel.operator
    first = make_plan(case.graph, at, TARGET).schedule
    rest = list(schedules(case.graph, at, TARGET))
    wanted: dict[str, Callable[[Any], bool]] = {
        "other cut": lambda s: s.cut != first.cut,
        "other stages": lambda s: s.stages != first.stages and s.cut == first.cut,
        "other threads": lambda s: s.threads != first.threads,
    }
    for lowering, chosen in wanted.items():
        for schedule in [one for one in rest if chosen(one)][:1]:
            yield Case(lowering, case.name, case.graph, one_kernel(case.graph, {at: schedule}))
    if case.name in ("gated_mlp-b8/0", "attn-b8/0"):  # the interpreter needs 10 s for one run of these
        return
    try:
        plain = make_plan(case.graph, at, TARGET, generic=True).schedule
        yield Case("generic", case.name, case.graph, one_kernel(case.graph, {at: plain}))
    except MirageError:
        return


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """Inputs of a kernel, as it reads them, and what it must write.

    Attributes:
        read: The parameters that it reads, flat, in order.
        wanted: What it must write, by written parameter.
    """

    read: list[NDArray[Any]]
    wanted: list[NDArray[Any]]


def _given(case: Case, seed: int, scale: float, low: float | None) -> Given:
    arrays = inputs_for(case.graph, seed, scale, low)
    for i, item in enumerate(case.graph.inputs):
        if item.band is not None:
            rows, columns = item.tensor.shape[-2:]
            off = np.arange(columns)[None, :] - np.arange(rows)[:, None]
            lower, upper = item.band.lower, item.band.upper
            keep = (lower is None or off >= lower) & (upper is None or off <= upper)
            arrays[i] = np.broadcast_to(keep, item.tensor.shape).astype(np.float32)
    known, program = storage_locations(case.graph), case.kernel.program
    bases = [known[value].base for value in case.kernel.values]
    params = list(zip(bases, program.params, strict=True))
    read = [laid_out(arrays[base], case.graph.inputs[base]) for base, param in params if not param.written]
    with np.errstate(all="ignore"):
        results = reference(case.graph, arrays)
    by_base = {known[n].base: result for n, result in zip(case.graph.outputs, results, strict=True)}
    return Given(read, [np.asarray(by_base[base]).reshape(-1) for base, param in params if param.written])


def off_by(program: Program, given: Given) -> float:
    """Return the largest error of a Program's results, relative to the largest wanted value.

    Raises:
        Fault: The Program is not safe.
    """
    found = watched(program, given.read, once=False)
    worst = 0.0
    for f, w in zip(found, given.wanted, strict=True):
        finite = np.isfinite(w) & (np.abs(w) < _LARGE)
        error = np.abs(f.astype(np.float64)[finite] - w[finite]).max() if finite.any() else 0.0
        relative = error / (np.abs(w[finite]).max() + 1e-30) if finite.any() else 0.0
        worst = max(worst, float(relative) if np.isfinite(relative) else np.inf)
    return worst


@cache
def givens(case_number: int) -> tuple[Given, ...]:
    """Return draws of inputs on which a case's own Program is right."""
    case = cases()[case_number]
    drawn = [_given(case, *draw) for draw in DRAWS]
    drawn = [one for one in drawn if all((np.abs(w) < _LARGE).all() for w in one.wanted)]
    return tuple(one for one in drawn if off_by(case.kernel.program, one) < SAME / 2)


def _errors(program: Program, draws: Sequence[Given], least: float) -> list[float]:
    """Return the errors of a Program's results on draws of inputs, up to the first one that is at most ``least``."""
    errors = []
    for one in draws:
        errors.append(off_by(program, one))
        if errors[-1] <= least or not least:
            break
    return errors


def outcome(case_number: int, mutant: Mutant, seed: int) -> Row:
    """Return what becomes of a mutant of a case."""
    case = cases()[case_number]
    kernel = replace(case.kernel, program=mutant.program)
    try:
        verdict = decide_realizes(case.graph, kernel, seed)
    except Exception as error:
        return Row(case, mutant, Outcome.ERROR, f"{type(error).__name__}: {error}")
    held, unknown = isinstance(verdict, Realizes), isinstance(verdict, Unknown)
    unsafe = Outcome.UNSAFE if held else Outcome.UNKNOWN_UNSAFE if unknown else Outcome.DEVIATES
    try:
        errors = _errors(mutant.program, givens(case_number), SAME if held else 0.0)
    except (AssertionError, IndexError, ValueError, ZeroDivisionError) as error:  # faults, and what has no meaning
        return Row(case, mutant, unsafe, f"{type(error).__name__}: {error}; {verdict}")
    said = f"{verdict}; errors {errors}"
    if unknown:
        return Row(case, mutant, Outcome.UNKNOWN, said)
    if held:
        different = bool(errors) and min(errors) > SAME
        wrong = Outcome.OVERFLOWS if np.isinf(errors).all() else Outcome.WRONG
        return Row(case, mutant, wrong if different else Outcome.KEPT, said)
    different = not errors or max(errors) > SAME
    return Row(case, mutant, Outcome.DEVIATES if different else Outcome.DEVIATES_SAME, said)


def sampled(count: int, seed: int, chosen: Iterable[int] | None = None) -> Iterator[tuple[int, Mutant]]:
    """Yield about as many mutants of each case, in all ``count``, in a random order."""
    numbers = list(range(len(cases()))) if chosen is None else list(chosen)
    every = -(-count // len(numbers))
    drawn = [
        (number, mutant)
        for number in numbers
        for mutant in program_mutants.drawn(cases()[number].kernel.program, every, seed * 1009 + number)
    ]
    random.Random(seed).shuffle(drawn)
    yield from drawn[:count]


def table(rows: Sequence[Row], key: Callable[[Row], str]) -> list[str]:
    """Return the lines of a Markdown table of outcomes, by what a row is counted under."""
    groups: dict[str, Counter[Outcome]] = {}
    for row in rows:
        groups.setdefault(key(row), Counter())[row.outcome] += 1
    lines = [f"| | {' | '.join(Outcome)} |", "|---|" + "---:|" * len(Outcome)]
    total: Counter[Outcome] = Counter(row.outcome for row in rows)
    for name, counts in [*sorted(groups.items()), ("all", total)]:
        lines.append(f"| {name} | {' | '.join(str(counts[one]) for one in Outcome)} |")
    return lines


__all__ = ["Case", "Outcome", "Row", "Touched", "cases", "givens", "outcome", "sampled", "table"]
