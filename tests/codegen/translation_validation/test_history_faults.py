"""Faults of the project's own history in planning, lowering and printing, put back one by one: each is found unrun.

The line that a commit has changed is put back into today's function, the kernel is made again, and no kernel is run.
Some lines were faults: kernels were wrong, or were refused, until the commit. Others were right for all that code
generation took at their time, and wrong for what the same commit made it take; ``stood`` says which.

Faults of the history that are not here, and why:

- Numbers of threads that are no powers of two in reductions over planes: schedules have only powers of two now.
- A maximum with a number whose number was lost: with that line lowering raises a TypeError, and makes no kernel.
- Barriers behind loops that some blocks skip as a whole: with that line no kernel that was tried becomes another one.
- A launch with too little shared memory: a Program has no such number of its own any more, it follows from the buffers.
- Zeros on one side of a ragged product alone, infinite softmaxes of one element, the largest float32 on tensor cores,
  divisions without NaN: over the reals they change nothing. Numerics and the contract with PyTorch have to find them.
- Maxima that began with the lowest number and not with -inf: the claim takes both for the maximum of nothing.
- Exponentials without their maximum that were taken for plain ones: of a stable form, which is refused for want of a
  proof before there is a kernel (``tests/codegen/online_softmax`` has its test).
- Faults of Triton files: no claim is about them.
"""

from __future__ import annotations
import __future__

import inspect
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import ModuleType
from typing import Any

import pytest

from mirage_formal.codegen import cuda_printer, predefined_kernels
from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.lowering import (
    assemble,
    context,
    copies,
    long_axis_reductions,
    mma_lowering,
    pointwise,
    registers,
    stores,
)
from mirage_formal.codegen.lowering.assemble import lower
from mirage_formal.codegen.planning import k_loop_splitting, step_order
from mirage_formal.codegen.planning.planner import make_plan, schedules
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program.access import list_accesses
from mirage_formal.codegen.program.plan import Schedule
from mirage_formal.codegen.safety.obligation_types import Safe, Unsafe
from mirage_formal.codegen.safety.safety import discharge_safety
from mirage_formal.codegen.translation_validation.realization import Deviates, Realizes, decide_realizes
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind as K
from mirage_formal.graph.types import DType
from mirage_formal.graph.verdict import Unknown
from mirage_formal.revalidate.cuda_reader import has_cuda_grammar, read_cuda, text_of_program
from mirage_formal.revalidate.rederive import first_difference
from mirage_formal.support.errors import UnsupportedError
from tests.codegen.lowering.test_lower_operators import NONE
from tests.codegen.lowering.test_lower_operators import kernel as block_kernel
from tests.codegen.lowering.test_ragged_products import chained
from tests.codegen.planning.test_cuts import kernel as loop_kernel
from tests.codegen.test_empty_tiles import attention
from tests.kit.graphs.text_reader import from_text
from tests.kit.graphs.workloads import load, op
from tests.kit.kernels.example_kernels import TARGET
from tests.kit.realizes.mutant_outcomes import cases


class Finder(StrEnum):
    """What finds a fault."""

    #: An obligation of safety is violated.
    SAFETY = "safety"
    #: An element differs from the µGraph's.
    CLAIM = "claim"
    #: The CUDA C++ that was printed does not state the Program.
    READER = "reader"


Making = Callable[[KernelGraph], GeneratedKernel]


@dataclass(frozen=True)
class HistoryFault:
    """One fault: the commit's sentence, the line as it is and as it was, and a µGraph whose kernel it changes.

    Attributes:
        sentence: What was wrong.
        owner, function: Where the line stands.
        now, then: The line, and what stood there before.
        graph: The µGraph.
        make: How its kernel is made.
        found: What finds it.
        stood: Whether kernels were wrong, or refused, until the commit; else the line was right for less.
    """

    sentence: str
    owner: Any
    function: str
    now: str
    then: str
    graph: Callable[[], KernelGraph]
    make: Making
    found: Finder
    stood: bool = False


# --- µGraphs, and how their kernels are made


def generated(graph: KernelGraph) -> GeneratedKernel:
    """The kernel of the first operator that has one, with the first schedule."""
    return next(step for step in generate(graph, TARGET).steps if isinstance(step, GeneratedKernel))


def planned(
    change: Callable[[Schedule], Schedule] = lambda one: one, *, number: int = 0, generic: bool = False
) -> Making:
    """How a kernel is made with a schedule."""

    def make(graph: KernelGraph) -> GeneratedKernel:
        if generic:
            program = lower(make_plan(graph, 0, TARGET, generic=True))
        else:
            found = list(schedules(graph, 0, TARGET))[number]
            program = lower(make_plan(graph, 0, TARGET, schedule=change(found)))
        return GeneratedKernel(0, tuple(range(len(program.params))), program)

    return make


def square_products() -> KernelGraph:
    """Sums of products of square matrices, of which one is computed."""
    ops = [op(K.RELU, 0), op(K.MATMUL, 2, 1), op(K.ACCUM_SUM, 3)]
    return block_kernel([(16, 48), (48, 16)], [load(NONE, 1), load(NONE, 0)], ops, [(4, NONE)], loop=3)


def mean_of_iterations() -> KernelGraph:
    """The mean, over the iterations of a loop, of sums."""
    return loop_kernel([(4, 64)], [1], [op(K.SUM, 0, dim=1), op(K.ACCUM_MEAN_LAST, 1)])


def sliced() -> KernelGraph:
    """A kernel that reads the last columns of its input in place."""
    return from_text(
        """mugraph 1
d0 = input(X) dtype=float16 shape=[64,96]
d1 = slice(d0) dim=1 start=32 stop=96
d2 = graph_defined(d1) grid=[4,1,1] block=[128,1,1] forloop_range=1 reduction_dimx=64 {
  s0 = input(d1) imap=[0,-,-] fmap=-
  s1 = relu(s0)
  s2 = accum_sum(s1)
  output(s2) omap=[0,-,-]
}
output(d2)
"""
    )


def repeated_rows() -> KernelGraph:
    """A concatenation of a matrix with one that is repeated along rows: 16 columns are one element in memory."""
    return from_text(
        """mugraph 1
d0 = input(X) dtype=float32 shape=[4,16]
d1 = input(Y) dtype=float32 shape=[4,16] strides=[1,0]
d2 = concat(d0, d1) dim=1
output(d2)
"""
    )


def case(name: str) -> Callable[[], KernelGraph]:
    """A µGraph of the tests of mutants."""
    return lambda: next(one.graph for one in cases() if f"{one.lowering}/{one.name}" == name)


# --- faults

PRODUCT = mma_lowering._ProductWriter
FAULTS: dict[str, HistoryFault] = {
    "barrier before products of square matrices": HistoryFault(
        "An element of an inlined product was taken for its own thread's, where operand and product have one shape, so "
        "that no barrier stood between the write of the operand and its reads by other threads.",
        step_order.KernelSteps,
        "_flat_owner",
        "if any(self.tensors[n].placement.inline and isinstance(self.makers.get(n), Product) for n in through):",
        "if False:",
        square_products,
        planned(generic=True),
        Finder.SAFETY,
        stood=True,
    ),
    "vectors of a concatenation": HistoryFault(
        "Registers of a concatenation were counted once for all operands, so that one that is repeated along rows left "
        "one register for the vectors of the other.",
        pointwise._Writer,
        "program",
        "lanes = {b.slot: self.width if b.slot in spread else 1 for b in boxes}",
        "lanes = {b.slot: 1 if b.strides[-1] == 0 else self.width for b in boxes}",
        repeated_rows,
        generated,
        Finder.SAFETY,
        stood=True,
    ),
    "mean of iterations that are cut": HistoryFault(
        "A loop was cut into more iterations although it computes their mean, whose divisor is their number.",
        k_loop_splitting,
        "can_split_iterations",
        "if not same or ",
        "if ",
        mean_of_iterations,
        planned(lambda one: replace(one, cut=2)),
        Finder.CLAIM,
        stood=True,
    ),
    "inner steps of warps": HistoryFault(
        "The inner steps of a product were divided among warps and rounded down, so that a ragged rest was left out.",
        PRODUCT,
        "__init__",
        "-(-self.depth // (MMA[2] * warps.inner))",
        "-(-self.depth // MMA[2]) // warps.inner",
        lambda: chained(20, 100, 21, dtype=DType.FLOAT32),
        planned(number=1),
        Finder.CLAIM,
    ),
    "zeros beside a computed operand": HistoryFault(
        "No zeros were written beside a computed operand whose depth is no whole number of steps, and tensor cores "
        "read there what nobody has written.",
        assemble,
        "_pad_results",
        "if (placement.rows, placement.cols) != whole:",
        "if False:",
        lambda: chained(20, 5, 21),
        planned(number=1),
        Finder.SAFETY,
    ),
    "copies of skipped iterations": HistoryFault(
        "Iterations before the window of a band mask were skipped with the copies that they start for later ones, "
        "which are then read before they are there.",
        assemble,
        "_skip_iterations",
        "    plan, at = cx.plan, cx.iteration\n",
        "    return _run_if(cx.needed(cx.iteration), inside)\n    plan, at = cx.plan, cx.iteration\n",
        lambda: attention(128, 4, 8, "[-20,-]"),
        generated,
        Finder.SAFETY,
    ),
    "offset of a slice": HistoryFault(
        "The offset of a slice that is read in place was left out of its addresses.",
        context,
        "_first_offset",
        "return place.offset + sum",
        "return sum",
        sliced,
        generated,
        Finder.CLAIM,
    ),
    "stores beyond a slice": HistoryFault(
        "Tiles that overhang a result were stored as a whole, beyond its end.",
        stores,
        "save_registers",
        "return make_conditional(cx.in_memory(tile, at, ZERO), (item,))",
        "return (item,)",
        case("remainders/product"),
        generated,
        Finder.SAFETY,
    ),
    "copies beyond a tensor": HistoryFault(
        "Tiles that overhang an input were copied to shared memory as a whole, from beyond its end.",
        copies,
        "copy_asynchronously",
        "inside = ix.both((inside, cx.in_memory(tile, at, iteration)))",
        "pass",
        case("remainders/product"),
        generated,
        Finder.SAFETY,
    ),
    "loads beyond a tensor": HistoryFault(
        "Elements that lie beyond an input were loaded from there, where the µGraph has the zeros of a pad.",
        context.LoweringContext,
        "device_element",
        "return value if inside == ONE else Select(inside, value, Real(0.0))",
        "return value",
        case("remainders/drawn 4"),
        generated,
        Finder.SAFETY,
    ),
    "narrow copies": HistoryFault(
        "Copies of 4 and 8 bytes were printed as copies of 16.",
        cuda_printer._Emitter,
        "copy",
        'size = "" if copy.bytes == 16 else f"<{copy.bytes}>"',
        'size = ""',
        case("remainders/float32"),
        generated,
        Finder.READER,
    ),
}


def function_with(fault: HistoryFault) -> Any:
    """The function with the line of before; the line stands there once."""
    function = inspect.getattr_static(fault.owner, fault.function)
    text = textwrap.dedent(inspect.getsource(function))
    assert text.count(fault.now) == 1, fault.function
    code = compile(
        text.replace(fault.now, fault.then),
        function.__code__.co_filename,
        "exec",
        flags=__future__.annotations.compiler_flag,
        dont_inherit=True,
    )
    names: dict[str, Any] = {}
    exec(code, function.__globals__, names)
    return names[fault.function]


def put_back(fault: HistoryFault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the line back, in all modules that have the function."""
    before, after = inspect.getattr_static(fault.owner, fault.function), function_with(fault)
    monkeypatch.setattr(fault.owner, fault.function, after)
    if isinstance(fault.owner, ModuleType):
        for module in list(sys.modules.values()):
            if (
                getattr(module, "__name__", "").startswith("mirage_formal.")
                and vars(module).get(fault.function) is before
            ):
                monkeypatch.setattr(module, fault.function, after)


def judge(graph: KernelGraph, kernel: GeneratedKernel, text: str) -> set[Finder]:
    """What finds something in a kernel; nothing runs it."""
    found = set()
    safety = discharge_safety(kernel.program).verdict
    if isinstance(safety, Unsafe):
        found.add(Finder.SAFETY)
    else:
        assert isinstance(safety, Safe), safety
    if isinstance(decide_realizes(graph, kernel, 1), Deviates):
        found.add(Finder.CLAIM)
    if has_cuda_grammar():
        stated = read_cuda(text)
        if first_difference(text_of_program(kernel.program, stated.extents), stated) is not None:
            found.add(Finder.READER)
    return found


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_fault_of_the_history_is_found_without_running_the_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault = FAULTS[name]
    graph = fault.graph()
    if fault.found is Finder.READER and not has_cuda_grammar():
        pytest.skip("tree-sitter's grammar of CUDA is not installed")
    refused = fault.owner is k_loop_splitting  # today there is no such kernel: the schedule is refused
    if refused:
        with pytest.raises(UnsupportedError, match="iterations that may be cut"):
            fault.make(graph)
    right = None if refused else fault.make(graph)
    if right is not None:
        text = emit_cuda(right.program)
        assert judge(graph, right, text) == set()
        assert isinstance(decide_realizes(graph, right, 1), Realizes)
    put_back(fault, monkeypatch)
    wrong = fault.make(fault.graph())
    try:
        printed = emit_cuda(wrong.program)
    except ValueError:  # it is no kernel by its form alone
        printed = ""
    if right is not None:
        assert (wrong.program, printed) != (right.program, text), "the line changes the kernel"
    assert fault.found in (judge(graph, wrong, printed) if printed else {Finder.SAFETY})


def test_a_run_of_three_columns_is_no_vector() -> None:
    """Widths of vector accesses were not powers of two: 6 bytes were read at once where all strides are multiples of 3.

    Runs of registers have only powers of two now, so the access is written down: 3 columns of a matrix of 3.
    """
    column = ir.IntBin(ir.IntOp.MUL, ir.Var("tid"), ir.Int(3))
    body: tuple[ir.Stmt, ...] = (
        ir.Registers("r", 3),
        ir.GlobalVector("r", ir.Int(0), "X", column, 3),
        *(ir.GlobalWrite("Y", ir.IntBin(ir.IntOp.ADD, column, ir.Int(i)), (ir.Reg("r", ir.Int(i)),)) for i in range(3)),
    )
    params = (ir.Param("X", DType.FLOAT16, 96, False), ir.Param("Y", DType.FLOAT16, 96, True))
    program = ir.Program("run", params, (), (1, 1, 1), 32, body)
    assert "6" in " ".join(what for _, _, what in list_accesses(program).faults)
    assert isinstance(discharge_safety(program).verdict, Unsafe)
    with pytest.raises(ValueError, match="statement 1"):
        emit_cuda(program)


def test_a_store_that_is_not_decided_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A norm along a dim of one element wrote at an expression that is always 0: the same, but nobody could tell.

    Such kernels are right, and were refused: nothing that safety does not decide is built.
    """
    monkeypatch.setattr(predefined_kernels, "_plan_program", lambda *_: None)
    fault = HistoryFault(
        "",
        long_axis_reductions._FibreWriter,
        "store_each",
        "here = ZERO if self.extent == 1 else self.ix.add(along, Int(part))",
        "here = self.ix.add(along, Int(part))",
        lambda: from_text(
            "mugraph 1\nd0 = input(X) dtype=float16 shape=[1000003,1,3]\nd1 = softmax(d0) dim=1\noutput(d1)\n"
        ),
        generated,
        Finder.SAFETY,
        stood=True,
    )
    assert isinstance(discharge_safety(fault.make(fault.graph()).program).verdict, Safe)
    put_back(fault, monkeypatch)
    assert isinstance(discharge_safety(fault.make(fault.graph()).program).verdict, Unknown)


def test_what_finds_how_many() -> None:
    found = Counter(fault.found for fault in FAULTS.values())
    assert found == {Finder.SAFETY: 7, Finder.CLAIM: 3, Finder.READER: 1}
    assert sum(fault.stood for fault in FAULTS.values()) == 3
    assert inspect.getsource(registers.vector_width).count("length & -length") == 1
