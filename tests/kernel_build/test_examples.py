"""An introduction to ``mirage_formal/kernel_build``: kernels of a candidate, with their obligations and source."""

from __future__ import annotations

import pytest

import mirage_formal as mf
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.built_kernels import BuiltKernels
from mirage_formal.kernel_build.candidate_forms import OWN, forms

H200 = load_target("h200")


def program(columns: int) -> KernelGraph:
    """The root mean square norm of rows."""
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(64, columns), dtype=mf.float16)
    graph.mark_output(graph.rms_norm(x))
    return graph.freeze()


@pytest.fixture(scope="module")
def built() -> BuiltKernels:
    return build(program(4096), program(4096), H200)


def test_kernels_belong_to_their_candidate(built: BuiltKernels) -> None:
    assert built.candidate == digest(program(4096))
    assert len(built.programs) == len(built.executable.launches) == 1


def test_every_safety_obligation_holds_before_anything_is_returned(built: BuiltKernels) -> None:
    assert built.obligations
    assert {record.finding for record in built.obligations} == {"held"}


def test_the_source_is_readable_cuda(built: BuiltKernels) -> None:
    ((name, text),) = built.executable.sources.items()
    assert name.endswith(".cu")
    assert 'extern "C" __global__' in text


def test_a_candidate_has_its_own_form_first() -> None:
    found = forms(program(256), H200)
    assert found[0].name == OWN
    assert found[0].graph == program(256)
