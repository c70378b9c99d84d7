"""First checkpoints of Mirage: read by the rules of docs/mirage_api.md, proved or refuted, and refused by name."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mirage_formal as mf
from mirage_formal.graph.formats.mirage.checkpoint_reader import from_mirage, graphs_of, is_mirage
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.verifier import faults
from mirage_formal.run.verify.graph_file import load_graphs
from mirage_formal.run.verify.verdicts import compute_verdicts
from mirage_formal.semantics.float64_reference import run
from mirage_formal.support.errors import FormatError
from tests.kit.checkpoints.first_checkpoints import ATTENTION, LORA, FirstGraph, attention, file_of, lora
from tests.kit.checkpoints.mirage_files import arrays_for
from tests.kit.graphs import workloads

PROGRAMS: Final = {"attention": workloads.attention(), "lora": workloads.lora()}


def read(*graphs: FirstGraph) -> tuple[KernelGraph, ...]:
    return from_mirage(json.dumps(file_of(*graphs)), "file.json")


# --- meaning ---


def test_a_first_checkpoint_is_known_by_its_graphs() -> None:
    assert is_mirage(file_of(lora()))
    assert not is_mirage({"schema": "mirage_formal/mugraph", "graphs": []})
    assert len(read(*ATTENTION.values())) == len(ATTENTION)


def test_the_rules_are_those_of_the_document() -> None:
    """Row-major inputs, reduction_dimx 64, and an accumulator before each saver, in its own tensor."""
    (graph,) = read(attention(divide="folded"))
    assert [item.strides for item in graph.inputs] == [(16384, 64, 1), (262144, 4096, 1), (262144, 64, 1)]
    first, second = graph.ops
    assert isinstance(first, GraphDefined)
    assert isinstance(second, GraphDefined)
    for block, savers in ((first.graph, 2), (second.graph, 1)):
        assert block.reduction_dimx == 64
        kinds = [op.kind for op in block.ops if not hasattr(op, "graph")]
        assert kinds[-savers:] == [OpKind.ACCUM_SUM] * savers
        assert kinds.count(OpKind.ACCUM_SUM) == savers
        places = [len(block.inputs) + len(kinds) - savers + n for n in range(savers)]
        assert [saver.operand for saver in block.outputs] == places


def test_layouts_and_the_state_of_the_search_are_read_past() -> None:
    value = file_of(attention())
    for op in value["generated_graphs"][0]:
        for tensor in (*op["input_tensors"], *op["output_tensors"]):
            tensor["layout"] = "DmemColumnMajor"
    value["callstack"] = [{"anything": 1}]
    assert from_mirage(json.dumps(value)) == read(attention())


def test_a_written_size_is_kept() -> None:
    """Later files of that format have reduction_dimx, in the block graph and in its plan."""
    value = file_of(attention(2, 8, 4, 16, grid=2, loop=2, divide="folded"))
    for op in value["generated_graphs"][0]:
        if "bgraph" in op:
            op["bgraph"]["reduction_dimx"] = op["plan"]["reduction_dimx"] = 4
            for inner in op["bgraph"]["operators"]:
                if inner.get("reduce_size") == 64:
                    inner["reduce_size"] = 4
    (graph,) = from_mirage(json.dumps(value))
    program = workloads.attention(2, 8, 4, 16, 4)
    arrays = arrays_for(program)
    np.testing.assert_allclose(run(graph, arrays)[0], run(program, arrays)[0], rtol=1e-11)


@pytest.mark.parametrize("divide", ["kernel", "block"])
def test_the_loop_is_summed(divide: str) -> None:
    program = workloads.attention(2, 8, 4, 16, 4)
    arrays = arrays_for(program)
    (graph,) = read(attention(2, 8, 4, 16, grid=2, loop=4, divide=divide))
    np.testing.assert_allclose(run(graph, arrays)[0], run(program, arrays)[0], rtol=1e-11)


# --- verdicts, at the published shapes ---


@pytest.mark.parametrize(("name", "graphs"), [("attention", ATTENTION), ("lora", LORA)])
def test_right_graphs_are_proved(name: str, graphs: dict[str, FirstGraph], tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(file_of(*graphs.values())))
    judged = list(
        compute_verdicts(PROGRAMS[name], load_graphs(path.read_bytes(), "file.json", PROGRAMS[name]), "file.json")
    )
    verdicts = dict(zip(graphs, (one.verdict for one in judged), strict=True))
    assert all(isinstance(verdict, mf.Equivalent) for verdict in verdicts.values()), verdicts


def test_a_quotient_inside_the_loop_is_refuted(tmp_path: Path) -> None:
    """The saver adds quotients up; without its accumulator the graph would not even be well-formed."""
    path = tmp_path / "file.json"
    path.write_text(json.dumps(file_of(attention(2, 8, 4, 16, grid=2, loop=2, divide="inside"))))
    assert isinstance(mf.equivalence(workloads.attention(2, 8, 4, 16, 4), path), mf.Different)
    path.write_text(json.dumps(file_of(attention(2, 8, 4, 16, grid=2, loop=1, divide="inside"))))
    assert isinstance(mf.equivalence(workloads.attention(2, 8, 4, 16, 4), path), mf.Equivalent)


# --- refusals ---

_Change = Callable[[list[dict[str, Any]]], None]


def _without(*steps: str | int) -> _Change:
    def change(graph: list[dict[str, Any]]) -> None:
        at: Any = graph
        for step in steps[:-1]:
            at = at[step]
        del at[steps[-1]]

    return change


def _with(value: object, *steps: str | int) -> _Change:
    def change(graph: list[dict[str, Any]]) -> None:
        at: Any = graph
        for step in steps[:-1]:
            at = at[step]
        at[steps[-1]] = value

    return change


def _cycle(graph: list[dict[str, Any]]) -> None:
    """The first kernel reads what the operator behind it makes."""
    graph[3]["bgraph"]["operators"][0]["dtensor"] = graph[3]["input_tensors"][0] = graph[4]["output_tensors"][0]


_INNER: Final = (3, "bgraph", "operators")
AT: Final = "$.generated_graphs[1][3].bgraph.operators"
FAULTS: Final[dict[str, tuple[_Change, str, str]]] = {
    "no loop": (
        _without(3, "bgraph", "forloop_range"),
        "$.generated_graphs[1][3].bgraph: object missing required field `forloop_range`",
        "kn_customized_op",
    ),
    "no map": (
        _without(*_INNER, 0, "input_map"),
        f"{AT}[0]: object missing required field `input_map`",
        "kn_customized_op, tb_input_op",
    ),
    "no tensor of a saver": (
        _with([], *_INNER, 7, "output_tensors"),
        f"{AT}[7].output_tensors: expected 1 tensors for tb_output_op, got 0",
        "kn_customized_op, tb_output_op",
    ),
    "no shape": (
        _without(0, "output_tensors", 0, "dim"),
        "$.generated_graphs[1][0].output_tensors[0]: object missing required field `dim`",
        "kn_input_op",
    ),
    "no operators": (
        _with(None, 3, "bgraph", "operators"),
        "$.generated_graphs[1][3].bgraph.operators: expected `array`, got `null`",
        "kn_customized_op",
    ),
    "cycle": (
        _cycle,
        "$.generated_graphs[1][3].input_tensors[0].guid: expected the guid of an earlier tensor, got",
        "kn_customized_op",
    ),
    "tile of another size": (
        _with([1, 16, 128, 0], *_INNER, 4, "output_tensors", 0, "dim"),
        f"{AT}[5].input_tensors[0]: expected a copy of {AT}[4].output_tensors[0]",
        "kn_customized_op, tb_reduction_2_op",
    ),
    "sum of another size": (
        _with([1, 32, 64, 0], *_INNER, 8, "output_tensors", 0, "dim"),
        f"{AT}[8].output_tensors[0]: expected float16 [1, 16, 64] after the loop, as follows from the operators",
        "kn_customized_op, tb_output_op",
    ),
    "result of another size": (
        _with([2, 256, 32, 0], 4, "output_tensors", 0, "dim"),
        "$.generated_graphs[1][4].output_tensors[0]: expected float16 [2, 256, 64], as follows from the operators",
        "kn_div_op",
    ),
    "another plan": (
        _with(8, 3, "plan", "forloop_range"),
        "$.generated_graphs[1][3].plan.forloop_range: expected what the block graph says, 16, got 8",
        "kn_customized_op",
    ),
    "a plan of other operands": (
        _with([[1, 0], [0, 0]], 3, "plan", "ops", 0, 1),
        "$.generated_graphs[1][3].plan.ops: expected what the block graph says",
        "kn_customized_op",
    ),
    "a plan with another map": (
        _with({"x": 0, "y": 2, "z": -1}, 3, "plan", "output_map"),
        "$.generated_graphs[1][3].plan.output_map: expected what the block graph says, {'x': 0, 'y': 1, 'z': -1}, got",
        "kn_customized_op",
    ),
    "no plan at all": (_with([], 3, "plan"), "[3].plan: expected an object, got list", "kn_customized_op"),
    "a sum over another dim": (
        _with(1, *_INNER, 5, "reduce_dim"),
        f"{AT}[5].reduce_dim: expected 2 as in tb_reduction_2_op, got 1",
        "kn_customized_op, tb_reduction_2_op",
    ),
    "a sum to more": (
        _with(64, *_INNER, 5, "reduce_size"),
        f"{AT}[5].reduce_size: expected 1 as in tb_reduction_2_op, got 64",
        "kn_customized_op, tb_reduction_2_op",
    ),
    "unknown operator": (
        _with("tb_square_root_op", *_INNER, 4, "op_type"),
        f"{AT}[4].op_type: expected an operator with a counterpart here, got 'tb_square_root_op'",
        "kn_customized_op, tb_square_root_op",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_graph_and_operator(name: str) -> None:
    change, words, operator = FAULTS[name]
    value = file_of(attention(), attention())
    if name == "unknown operator":
        del value["generated_graphs"][1][3]["plan"]  # which would contradict it first
    change(value["generated_graphs"][1])
    first, second = graphs_of(value, "file.json")
    assert isinstance(first, KernelGraph)
    assert isinstance(second, FormatError)
    assert words in second.what
    assert second.what.endswith(f" (in {operator})")
    assert second.where == "file.json"


def test_a_graph_that_is_not_well_formed_is_named() -> None:
    value = file_of(lora(4, 8, 12, 2, grid=3))
    block = value["generated_graphs"][0][4]["bgraph"]
    del value["generated_graphs"][0][4]["plan"]
    block["grid_dim"]["x"] = 5
    (found,) = graphs_of(value, "file.json")
    assert isinstance(found, FormatError)
    assert "field $.generated_graphs[0]: 2 faults:\n  - op 0 (graph_defined): input iterator 1: imap x" in found.what


def test_files_without_graphs() -> None:
    for graphs, got in (([], "an empty one"), ({}, "dict"), (None, "NoneType")):
        with pytest.raises(FormatError, match=rf"field \$\.generated_graphs: expected a list of .*, got {got}"):
            from_mirage(json.dumps({"generated_graphs": graphs}))
    with pytest.raises(FormatError, match=r"field \$\.generated_graphs\[0\]: expected a list of operators, got dict"):
        from_mirage(json.dumps({"generated_graphs": [{}]}))


_ODD: st.SearchStrategy[Any] = st.sampled_from([None, -1, 0, 1, 2, 64, 2**40, 1.5, "", "tb_exp_op", [], {}, True])
_FILE: Final = file_of(attention(2, 8, 4, 16, grid=2, loop=2), lora(4, 8, 12, 2, grid=3))


@given(st.data())
def test_any_change_is_read_or_refused(data: st.DataObject) -> None:
    """A changed file gives well-formed graphs or FormatErrors, never anything else."""
    value = copy.deepcopy(_FILE)
    for _ in range(data.draw(st.integers(1, 2))):
        at: Any = value["generated_graphs"]
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = data.draw(st.sampled_from(keys))
            inner = at[key]
            if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 9)) == 0:
                at[key] = data.draw(_ODD)
                break
            at = inner
    for found in graphs_of(value, "file.json"):
        if isinstance(found, FormatError):
            assert found.what.startswith("field $.generated_graphs")
        else:
            assert faults(found) == []
