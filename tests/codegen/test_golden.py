"""The CUDA text of one kernel of each kind, as it is today: a change of text is a decision, seen in the difference.

Run ``python -m pytest tests/codegen/test_golden.py --update-golden`` to write the texts anew.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.online_softmax.stabilize import stabilize
from mirage_formal.codegen.program.program import Program
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, row_major
from tests.kit.graphs import workloads as w
from tests.kit.kernels.example_kernels import alone
from tests.kit.paths import REPOSITORY

GOLDEN = REPOSITORY / "tests" / "golden"
TARGET = load_target("h200")


def stable(graph: KernelGraph) -> KernelGraph:
    found = stabilize(graph)
    assert isinstance(found, KernelGraph)
    return found


def operator(kind: OpKind, attrs: Attrs, *shapes: tuple[int, ...]) -> KernelGraph:
    """A predefined operator on row-major float16 tensors."""
    inputs = tuple(Input(f"x{i}", DTensor(s, DType.FLOAT16), row_major(s)) for i, s in enumerate(shapes))
    return KernelGraph(inputs, (Op(kind, tuple(range(len(shapes))), attrs),), (len(shapes),))


def slabs() -> KernelGraph:
    """A loop whose iterations are laid one after another, by threads that own one element each."""
    kernel = w.kernel(
        (0,), (2, 3, 1), 4, [w.load((0, 0, None), 0)], [w.op(w.K.ACCUM_CONCAT, 0, dim=0)], [(1, (0, 0, None))]
    )
    return alone(kernel, [w.tensor("X", 48, 8).tensor])


def predefined() -> list[KernelGraph]:
    """Predefined operators: vectors of neighbours, a transposed copy, and rows in registers."""
    eps = Attrs(dim=1, eps=Fraction(1, 10**5))
    return [
        operator(OpKind.SILU, Attrs(), (64, 256)),
        operator(OpKind.ADD, Attrs(), (64, 256), (1, 256)),
        operator(OpKind.TRANSPOSE, Attrs(perm=(1, 0)), (64, 256)),
        operator(OpKind.CONCAT, Attrs(dim=1), (64, 256), (64, 128)),
        operator(OpKind.SUM, Attrs(dim=1), (64, 256)),
        operator(OpKind.SOFTMAX, Attrs(dim=1), (64, 256)),
        operator(OpKind.RMS_NORM, eps, (64, 256), (1, 256)),
    ]


#: What is special about a kernel, and a µGraph that has one: products on tensor cores fed by a ring of tiles, products
#: that hand their accumulators on, running maxima, combining kernels, reductions in registers, vectors of neighbours.
KERNELS: dict[str, Callable[[], KernelGraph | list[KernelGraph]]] = {
    "norm-and-product": w.rmsnorm_fused,
    "attention": w.attention_one,
    "attention-running-maximum": lambda: stable(w.attention_one()),
    "attention-parts": w.attention_split,
    "attention-parts-running-maximum": lambda: stable(w.attention_split()),
    "adapters": w.lora_fused,
    "gated-products": w.gated_mlp_fused,
    "elementwise-and-norms": w.ntrans_fused,
    "loop-concatenation": slabs,
    "predefined": predefined,
}


def programs(found: KernelGraph | list[KernelGraph]) -> list[Program]:
    """Every generated kernel of some µGraphs."""
    graphs = found if isinstance(found, list) else [found]
    steps = [step for graph in graphs for step in generate(graph, TARGET).steps]
    return [step.program for step in steps if isinstance(step, GeneratedKernel)]


@pytest.mark.parametrize("name", KERNELS)
def test_the_text_is_what_it_was(name: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / f"{name}.cu"
    text = "\n".join(map(emit_cuda, programs(KERNELS[name]())))
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text


def test_no_text_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.cu")} == set(KERNELS)
