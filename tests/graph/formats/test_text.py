"""The readable print and the way back."""

import re

import pytest
from hypothesis import given, settings

from mirage_formal.graph.check import faults
from mirage_formal.graph.formats.json import MAX_BYTES
from mirage_formal.graph.formats.text import from_text, to_text
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.support.errors import FormatError
from tests.kit.graphs.graph_strategies import kernel_graphs

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


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("mugraph 1", "mugraph 2", "f:1", "expected 'mugraph 1'"),
        ("d2 = graph", "d7 = graph", "f:4", "expected results d2, got d7"),
        ("d2 = graph", "d2, d3 = graph", "f:4", "expected results d2, got d2, d3"),
        ("s2 = matmul", "matmul", "f:7", "expected results s2, got none"),
        ("s2 = matmul", "s2, s3 = matmul", "f:7", "got s2, s3"),
        ("s2 = matmul", "s2 = matmal", "f:7", "expected an operator, got matmal"),
        ("matmul(s0, s1)", "matmul(s0, d1)", "f:7", "expected a tensor such as s0, got 'd1'"),
        ("matmul(s0, s1)", "matmul(s0, s9)", "f", "$.ops[0].graph.ops[0].operands[1]"),
        ("matmul(s0, s1)", "matmul(s0, s1", "f:7", "expected 'results = operator(operands) key=value'"),
        ("factor=-1/8", "factor=0.5", "f", "factor"),
        ("factor=-1/8", "factor=1/8 factor=1/8", "f:14", "each key once"),
        ("factor=-1/8", "kind=exp", "f:14", "expected no kind"),
        ("factor=-1/8", "operands=[0]", "f:14", "expected no operands"),
        ("factor=-1/8", "and more", "f:14", "key=value"),
        ("dim=1", "dim=x", "f:19", "expected an integer"),
        ("shape=[16,64]", "", "f:2", "expected shape=..."),
        ("shape=[16,64]", "shape=[16,-]", "f:2", "expected shape=[...] of integers"),
        ("shape=[16,64]", "shape=[16,99999999999]", "f", "$.inputs[0].shape[1]"),
        ("imap=[1,-,-]", "imap=[1,-]", "f", "imap"),
        ("fmap=0", "fmap=0 dim=1", "f:6", "expected no dim"),
        ("s0 = input(d0)", "s0 = input(d1)", "f:4", "inputs to read d0, d1 in order"),
        ("output(d2)\n", "output(d2)\n}", "f:22", "got '}'"),
        ("\n}\nd3", "\nd3", "f:18", "expected a tensor such as s0, got 'd2'"),
        ("\n}\nd3 = sum(d2) dim=1\noutput(d3)\noutput(d2)\n", "", "f:17", "expected '}', got the end of the text"),
        ("reduction_dimx=64 {", "reduction_dimx=64", "f:4", "expected { after graph_defined"),
        ("d3 = sum", "d3 = input(Z) dtype=float16 shape=[2]\nd4 = sum", "f:19", "inputs before operators"),
        ("s5 = thread_defined", "s5 = input(d0) imap=[-,-,-] fmap=-\ns6 = thread_defined", "f:10", "before operators"),
    ],
)
def test_faulty_text_is_located(old: str, new: str, where: str, what: str) -> None:
    bare = re.sub(r" *;.*", "", RMS)
    assert old in bare
    text = bare.replace(old, new, 1)
    with pytest.raises(FormatError) as raised:
        from_text(text, "f")
    assert what in raised.value.what
    assert raised.value.where.startswith(where)


def test_long_texts_are_refused_quickly() -> None:
    with pytest.raises(FormatError, match="at most"):
        from_text(" " * (MAX_BYTES + 1))
    for line in ("a" * 200_000, "a " * 100_000 + "!", "d0 = x(" * 20_000, "d0 = exp(d0) " + "a=1 " * 20_000):
        with pytest.raises(FormatError):
            from_text("mugraph 1\n" + line)
    with pytest.raises(FormatError):
        from_text("")
