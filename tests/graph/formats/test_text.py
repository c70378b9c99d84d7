"""The readable print and the way back."""

import re

from hypothesis import given, settings

from mirage_formal.graph.formats.text import to_text
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.graph.verifier import faults
from tests.kit.graphs.graph_strategies import kernel_graphs
from tests.kit.graphs.text_reader import from_text

RMS = """\
mugraph 1
d0 = input(X) dtype=float16 shape=[16,64]
d1 = input(W) dtype=float16 shape=[64,32] strides=[1,64]
d2 = graph_defined(d0, d1) grid=[4,1,1] block=[128,1,1] forloop_range=2 reduction_dimx=64 { ; float16[16,32]
  s0 = input(d0) imap=[-,-,-] fmap=1                         ; float16[16,32]
  s1 = input(d1) imap=[1,-,-] fmap=0                         ; float16[32,8]
  s2 = matmul(s0, s1)                                        ; float16[16,8]
  s3 = accum_sum(s2)                                         ; float16[16,8] behind the loop
  s4 = accum_rms_last(s0)                                    ; float16[16,1] behind the loop
  s5 = thread_defined(s3, s4) {                              ; float16[16,8] behind the loop
    r0 = input(s3)
    r1 = input(s4)
    r2 = div(r0, r1)                                         ; float16[16,8]
    r3 = scale(r2) factor=-1/8                               ; float16[16,8]
    output(r3)
  }
  output(s5) omap=[1,-,-]
}
d3 = sum(d2) dim=1                                           ; float16[16,1]
output(d3)
output(d2)
"""


def test_golden() -> None:
    graph = from_text(RMS)
    assert faults(graph) == []
    assert graph.outputs == (3, 2)
    assert to_text(graph) == RMS


@settings(max_examples=200)
@given(kernel_graphs())
def test_round_trip(graph: KernelGraph) -> None:
    assert from_text(to_text(graph)) == graph


def test_comments_blank_lines_and_indents_do_not_matter() -> None:
    bare = re.sub(r" *;.*", "", RMS)
    spaced = "\n\n".join("   " + line.strip() + "  " for line in bare.splitlines())
    assert from_text(spaced) == from_text(RMS)


def test_a_faulty_graph_prints_without_types() -> None:
    graph = KernelGraph((Input("X", DTensor((2, 3), DType.FLOAT16), (3, 1)),), (Op(OpKind.MATMUL, (0, 0)),), (1,))
    text = to_text(graph)
    assert "d1 = matmul(d0, d0)\n" in text
    assert ";" not in text
    assert from_text(text) == graph
