"""The table of the reference system's interface: every row is true, and docs/mirage_api.md is printed from it."""

from __future__ import annotations

import ast
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mirage_formal as mi
from mirage_formal.api import request
from mirage_formal.frontend.mirage_api.rows import (
    BLOCK,
    CODE,
    GRAPH,
    MAKING,
    MODULE,
    OPTIONS,
    SECTIONS,
    InterfaceName,
    ObjectRows,
    SupportLevel,
)
from mirage_formal.frontend.mirage_api.table import document
from mirage_formal.graph.graph import KernelGraph
from tests.kit.graphs.mirage_programs import gqa_split, rms_linear
from tests.kit.paths import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "mirage_api.md"


def rows(section: ObjectRows, *offers: SupportLevel) -> list[InterfaceName]:
    return [row for row in section.rows if row.offer in offers]


def own(row: InterfaceName) -> str:
    """The name without its class or function."""
    return row.name.rpartition(".")[2].rpartition("(")[2].rstrip(")")


def test_the_document_is_the_table() -> None:
    """Run ``python -m mirage_formal.frontend.mirage_api > docs/mirage_api.md`` when this fails."""
    assert DOCUMENT.read_text(encoding="utf-8") == document() + "\n"
    command = [sys.executable, "-m", "mirage_formal.frontend.mirage_api"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, check=True)
    assert done.stdout == DOCUMENT.read_text(encoding="utf-8")


def test_names_are_there_once_and_differences_say_what_to_do() -> None:
    every = [row for section in SECTIONS for row in section.rows]
    assert len({row.name for row in every}) == len(every) > 90
    for section in SECTIONS:
        for row in section.rows:
            assert row.name.startswith(section.owner)
            assert section.owner or row.name.isidentifier()
            assert row.difference or row.offer is SupportLevel.YES, row.name


@pytest.mark.parametrize("row", rows(MODULE, SupportLevel.YES), ids=lambda row: row.name)
def test_names_of_the_module_that_are_there(row: InterfaceName) -> None:
    value = getattr(mi, row.name)
    assert row.name in mi.__all__
    assert callable(value) or isinstance(value, mi.DType)


@pytest.mark.parametrize("row", rows(MODULE, SupportLevel.NO), ids=lambda row: row.name)
def test_names_of_the_module_that_are_not(row: InterfaceName) -> None:
    with pytest.raises(mi.UnsupportedError, match=f"got {row.name}: ") as raised:
        getattr(mi, row.name)(mi.new_kernel_graph())  # of ours, `optimize` has this name: it is for torch's modules
    refused(raised.value, row)


@pytest.mark.parametrize("row", rows(GRAPH, SupportLevel.NO), ids=own)
def test_methods_of_a_graph_that_are_not(row: InterfaceName) -> None:
    graph = mi.new_kernel_graph()
    with pytest.raises(mi.UnsupportedError) as raised:
        getattr(graph, own(row))()
    if not hasattr(mi.Graph, own(row)):  # an operator of ours that refuses itself has a hint of its own
        refused(raised.value, row)


def refused(error: mi.UnsupportedError, row: InterfaceName) -> None:
    assert row.difference in error.what
    assert f"row {row.name} of docs/mirage_api.md" in error.hint
    assert "test_mirage_api.py:" in error.where


@pytest.mark.parametrize(
    ("owner", "row"),
    [(mi.Graph, row) for row in rows(GRAPH, SupportLevel.YES)]
    + [(mi.BlockBuilder, row) for row in rows(BLOCK, SupportLevel.YES)],
    ids=lambda value: value.name if isinstance(value, InterfaceName) else "",
)
def test_methods_that_are_there(owner: type, row: InterfaceName) -> None:
    if isinstance(getattr(owner, own(row)), property):
        return
    assert callable(getattr(owner, own(row)))
    assert str(getattr(owner, own(row)).__annotations__.get("return")) != "NoReturn"


@pytest.mark.parametrize("row", rows(BLOCK, SupportLevel.NO), ids=own)
def test_methods_of_a_block_graph_that_are_not(row: InterfaceName) -> None:
    with pytest.raises(mi.UnsupportedError):
        getattr(mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1), own(row))()


# --- options ---------------------------------------------------------------------------------------------------------

_VALUES: dict[str, Any] = {"backend": "triton", "config": "mlp", "verbose": True}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the search is asked for; none is made."""
    found: dict[str, Any] = {}

    def superoptimize(program: KernelGraph, **options: Any) -> list[Any]:
        found.update(options)
        return [SimpleNamespace()]

    monkeypatch.setattr(request, "superoptimize", superoptimize)
    return found


@pytest.mark.parametrize("row", OPTIONS.rows, ids=own)
def test_options(row: InterfaceName, asked: dict[str, Any]) -> None:
    value = _VALUES.get(own(row), 2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        rms_linear().superoptimize(**{own(row): value})
    if row.offer is SupportLevel.IGNORED:
        assert [w.category for w in caught] == [mi.IgnoredOptionWarning]
        assert asked == {}
    else:
        assert caught == []
        assert len(asked) == 1


def test_options_with_other_names(asked: dict[str, Any]) -> None:
    rms_linear().superoptimize(num_search_thread=3, search_time_limit_sec=60)  # type: ignore[call-arg]
    assert asked == {"workers": 3, "time_limit": 60}
    asked.clear()
    rms_linear().superoptimize(  # type: ignore[call-arg]
        num_search_thread=-1, search_time_limit_sec=-1, max_num_kernel_graph_op=-1, previous_checkpoint=None
    )
    assert asked == {}


def test_another_back_end(asked: dict[str, Any]) -> None:
    with pytest.raises(mi.UnsupportedError, match="got 'nki'") as raised:
        rms_linear().superoptimize(backend="nki")
    assert "row superoptimize(backend) of docs/mirage_api.md" in raised.value.hint


_MADE: dict[str, Any] = {"gpu_dim": (2, 1, 1), "cluster_dim": (1, 8, 1), "epilogue": "allreduce"}


@pytest.mark.parametrize("row", MAKING.rows, ids=own)
def test_options_of_what_makes_graphs(row: InterfaceName) -> None:
    given: dict[str, Any] = {own(row): _MADE.get(own(row), 2)}

    def make() -> None:
        if row.name.startswith("new_kernel_graph"):
            mi.new_kernel_graph(**given)
        elif row.name.startswith("new_threadblock_graph"):
            mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1, **given)
        else:
            block = mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1)
            tile = block.new_input(mi.new_kernel_graph().new_input((4, 8)), (-1, -1, -1))
            block.new_output(block.forloop_accum(tile), (-1, -1, -1), **given)

    if row.offer is SupportLevel.IGNORED:
        with pytest.warns(mi.IgnoredOptionWarning, match=own(row)):
            make()
    else:
        with pytest.raises(mi.UnsupportedError, match=own(row)) as raised:
            make()
        assert f"row {row.name} of docs/mirage_api.md" in raised.value.hint


def test_one_gpu_and_no_cluster_are_what_there_is() -> None:
    mi.new_kernel_graph(gpu_dim=(1, 1, 1))
    mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1, cluster_dim=(1, 1, 1))
    with pytest.raises(mi.UnsupportedError, match="no option is called clusters"):
        mi.new_threadblock_graph((1, 1, 1), (128, 1, 1), 1, clusters=2)


@pytest.mark.parametrize("row", CODE.rows, ids=own)
def test_options_of_code(row: InterfaceName) -> None:
    """Each at the first of compile, calls and generate_cuda_program that has it."""
    graph = rms_linear()
    value: Any = {
        "inputs": [],
        "target_cc": 80,
        "input_strides": [item.strides for item in graph.freeze().inputs],
        "output_tensors": graph.outputs,
        "file_id": "norm",
    }.get(own(row), 3)
    calls = {"inputs": graph.compile, "async_": graph.compile}
    call: Any = calls.get(own(row), lambda **given: mi.generate_cuda_program(graph, **given))
    if row.offer is SupportLevel.IGNORED:
        with pytest.warns(mi.IgnoredOptionWarning, match=own(row)):
            call(**{own(row): value})
    elif row.offer is SupportLevel.YES:
        call(**{own(row): value})
    else:
        for refuses in (call, graph.compile, graph):
            with pytest.raises(mi.UnsupportedError) as raised:
                refuses(**{own(row): value})
            assert f"row {row.name} of docs/mirage_api.md" in raised.value.hint


def test_a_call_takes_outputs_by_name() -> None:
    graph = mi.new_kernel_graph()
    A, B = graph.new_input((4, 8)), graph.new_input((4, 8))
    total = graph.add(A, B)
    first, second = graph.exp(total), graph.square(total)
    a, b = (np.full((4, 8), value, np.float16) for value in (0.5, 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = graph(inputs=[a, b], outputs=[second, first])
        assert len(graph(a, b, outputs=[first])) == 1
        assert graph.cygraph is graph
        with pytest.raises(mi.GraphError, match="expected one of the graph's outputs"):
            graph(inputs=[a, b], outputs=[total])
    np.testing.assert_array_equal(found[0], np.full((4, 8), 2.25, np.float16))
    np.testing.assert_allclose(found[1], np.exp(1.5), rtol=2e-3)


def test_bounds_of_a_clamp_have_both_names() -> None:
    graph = mi.new_kernel_graph()
    X = graph.new_input((4, 8))
    graph.mark_output(graph.clamp(X, min_val=-1, max_val=2))
    graph.mark_output(graph.clamp(X, -1, 2))
    x = np.linspace(-4, 4, 32, dtype=np.float16).reshape(4, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = graph(x)
    np.testing.assert_array_equal(one, np.clip(x, -1, 2))
    np.testing.assert_array_equal(one, other)


# --- what is ignored, and what is written ----------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows(MODULE, SupportLevel.IGNORED), ids=lambda row: row.name)
def test_functions_that_are_ignored(row: InterfaceName) -> None:
    with pytest.warns(mi.IgnoredOptionWarning, match=row.name):
        getattr(mi, row.name)(1)


def test_compile_is_not_needed() -> None:
    graph = rms_linear()
    graph.compile(inputs=[], target_cc=90, num_warp_groups=-1, profiling=False)
    with pytest.warns(mi.IgnoredOptionWarning, match="num_warp_groups"):
        graph.compile(num_warp_groups=2)
    with pytest.raises(mi.UnsupportedError, match="expected profiling=False") as raised:
        graph.compile(profiling=True)
    assert "row compile(profiling) of docs/mirage_api.md" in raised.value.hint
    with pytest.raises(mi.UnsupportedError, match="no option is called warps"):
        graph.compile(warps=3)


def test_cuda_programs() -> None:
    graph = gqa_split()
    strides = [item.strides for item in graph.freeze().inputs]
    program = mi.generate_cuda_program(graph, target_cc=80, input_strides=strides)
    assert program["code"].count("__global__") == 2
    assert program["buf_size"] > 0
    assert 0 < program["max_smem_size"] <= 163 << 10
    assert program["output_directives"] == ({"alloc_size": 1024, "shape": (2, 32, 16), "strides": (512, 16, 1)},)
    assert set(program.keys()) == {"code", "buf_size", "max_smem_size", "profiler_buf_size", "output_directives"}
    with pytest.raises(KeyError):
        program["built"]
    with pytest.raises(mi.UnsupportedError, match="expected the inputs' strides"):
        mi.generate_cuda_program(graph, input_strides=[(1, 2, 3)] * 3)
    with pytest.raises(mi.GraphError, match="expected a kernel graph, got int"):
        mi.generate_cuda_program(3)  # type: ignore[arg-type]


def test_pictures_are_text_of_graphviz(tmp_path: Path) -> None:
    graph = gqa_split()
    graph.visualize(str(tmp_path / "attention"))
    text = (tmp_path / "attention.dot").read_text(encoding="utf-8")
    assert text.startswith("digraph mugraph {")
    assert text.count("subgraph cluster_") == 2
    assert 'label="grid 2x2x1, 128 threads, loop 4"' in text
    assert "x: dim 0, y: dim 2, loop over dim 2" in text
    assert text.count("{") == text.count("}")
    nodes = {line.split()[0] for line in text.splitlines() if "[label=" in line and "->" not in line}
    ends = {end for line in text.splitlines() if " -> " in line for end in line.split("[")[0].strip(" ;").split(" -> ")}
    assert ends <= nodes
    with pytest.raises(mi.RunError, match="expected a file that can be written"):
        graph.visualize(tmp_path / "none" / "attention.dot")


def test_checkpoints_are_written(tmp_path: Path) -> None:
    graph = gqa_split()
    graph.to_json(tmp_path / "attention.json")
    assert isinstance(mi.equivalence(graph, tmp_path / "attention.json"), mi.Equivalent)


def test_types_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mi.convert_torch_type_to_dtype(SimpleNamespace(__name__="torch.bfloat16")) is mi.bfloat16
    assert mi.convert_torch_type_to_dtype(np.float32) is mi.float32
    with pytest.raises(mi.DTypeError, match="expected one of"):
        mi.convert_torch_type_to_dtype("torch.int8")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(mi.UnsupportedError, match="expected torch, got none"):
        mi.convert_dtype_to_torch_type(mi.float16)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(float16="half"))
    assert mi.convert_dtype_to_torch_type("float16") == "half"  # type: ignore[arg-type]


def test_an_import_names_the_users_line() -> None:
    code = "import mirage_formal as mi\n\nfrom mirage_formal import MPK\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False)
    assert done.returncode == 1
    assert "<string>:3: expected a name that is offered here, got MPK" in done.stderr


def test_the_document_has_no_row_that_the_module_lacks() -> None:
    """What the module exports and the reference system has not needs no row; the rest is in the table."""
    names = {row.name for row in MODULE.rows if row.offer is not SupportLevel.NO}
    tree = ast.parse((REPOSITORY / "mirage_formal" / "__init__.py").read_text())
    exported = {
        n.value
        for node in ast.walk(tree)
        if isinstance(node, ast.List)
        for n in node.elts
        if isinstance(n, ast.Constant)
    }
    assert names <= exported
