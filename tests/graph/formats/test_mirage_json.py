"""Checkpoints of Mirage: what is read means what the file says, and what contradicts itself is refused."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_formal.graph.formats.mirage.checkpoint_reader import from_mirage, graphs_of, is_mirage
from mirage_formal.graph.formats.mirage.checkpoint_writer import to_mirage
from mirage_formal.graph.formats.mirage.operator_names import BLOCK_ROWS, CURRENT, KERNEL_ROWS, REFUSED, SAVED, Dialect
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, ThreadDefined
from mirage_formal.graph.ops import SPECS, Attrs, Level, OpKind
from mirage_formal.graph.signature_check import match_inputs
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import faults
from mirage_formal.semantics.float64_reference import run
from mirage_formal.support.errors import FormatError, GraphError, UnsupportedError
from tests.kit.checkpoints.mirage_files import SMALL, arrays_for, evaluate, grid_map, hand_written, renamed
from tests.kit.graphs import workloads
from tests.kit.graphs.random_graphs import random_graph
from tests.kit.paths import REPOSITORY

DOCUMENT = REPOSITORY / "docs" / "mirage_json.md"

# --- meaning ---


@pytest.mark.parametrize("name", SMALL)
def test_a_file_computes_what_its_program_does(name: str) -> None:
    program, candidate = SMALL[name]
    text = to_mirage([candidate])
    arrays = arrays_for(program)
    wanted = run(program, arrays)
    (graph,) = from_mirage(text)
    for value, by_file, by_import in zip(
        wanted, evaluate(json.loads(text)[0], arrays), run(graph, arrays), strict=True
    ):
        np.testing.assert_allclose(by_file, value, rtol=1e-11)
        np.testing.assert_allclose(by_import, value, rtol=1e-11)


EXPRESSIBLE = frozenset(row.kind for row in (*KERNEL_ROWS.values(), *BLOCK_ROWS.values()))


def _threads(graph: KernelGraph) -> bool:
    blocks = (op.graph for op in graph.ops if isinstance(op, GraphDefined))
    return any(isinstance(op, ThreadDefined) for block in blocks for op in block.ops)


def test_random_graphs_go_there_and_back() -> None:
    kinds_seen, dissolved, written = set(), 0, 0
    for seed in range(1200):
        graph = random_graph(random.Random(seed), EXPRESSIBLE)
        if faults(graph):
            continue  # a grid axis that no output uses
        try:
            text = to_mirage([graph], dialect=(SAVED, CURRENT)[seed % 2])
        except UnsupportedError:
            continue  # a norm with eps, or an operator at the wrong level
        written += 1
        (back,) = from_mirage(text)
        if _threads(graph):
            dissolved += 1
        else:
            assert back == renamed(graph)
        kinds_seen |= set(re.findall(r'"((?:kn|tb)_\w+_op)"', text))
        arrays = arrays_for(graph)
        with np.errstate(all="ignore"):
            by_file = evaluate(json.loads(text)[0], arrays)
        for ours, original, theirs in zip(run(back, arrays), run(graph, arrays), by_file, strict=True):
            np.testing.assert_allclose(ours, original, rtol=1e-9, equal_nan=True)
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, equal_nan=True)
    assert written > 150
    assert dissolved > 10
    named = {name for name in (*KERNEL_ROWS, *BLOCK_ROWS) if not re.search(r"_2(_|$)", name.removesuffix("_op"))}
    missing = named - kinds_seen
    assert missing == set(), missing


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype.floating])
@pytest.mark.parametrize("dialect", [SAVED, CURRENT], ids=["saved", "current"])
def test_every_element_type_in_every_dialect(dtype: DType, dialect: Dialect) -> None:
    graph = SMALL["lora"][1]
    typed = replace(graph, inputs=tuple(replace(i, tensor=replace(i.tensor, dtype=dtype)) for i in graph.inputs))
    half = DType.FLOAT16 if dtype is DType.FLOAT32 else dtype
    assert from_mirage(to_mirage([typed], dialect=dialect), half=half) == (renamed(typed),)
    if dialect is SAVED:
        assert from_mirage(to_mirage([typed], dialect=dialect)) == (renamed(typed),)


def test_several_graphs_one_graph_and_strides() -> None:
    graphs = [candidate for _, candidate in SMALL.values()]
    text = to_mirage(graphs)
    assert from_mirage(text.encode()) == tuple(map(renamed, graphs))
    guids = [t["guid"] for g in json.loads(text) for op in g for t in op["output_tensors"]]
    assert len(set(guids)) == len(guids)
    assert from_mirage(json.dumps(json.loads(text)[2])) == (renamed(graphs[2]),)
    first = graphs[0]
    column = replace(first, inputs=(first.inputs[0], replace(first.inputs[1], strides=(1, 16))))
    assert from_mirage(to_mirage([column])) == (renamed(column),)


@pytest.mark.parametrize("accumulator", ["tb_accum_nored_op", "tb_forloop_accum_nored_op"])
def test_a_hand_written_file_without_output_operators(accumulator: str) -> None:
    (graph,) = from_mirage(json.dumps(hand_written(accumulator)))
    n = None
    wanted = KernelGraph(
        (workloads.tensor("X0", 4, 12),),
        (
            workloads.kernel(
                (0,),
                (3, 2, 1),
                2,
                [workloads.load((1, 0, n), 1)],
                [workloads.op(OpKind.EXP, 0), workloads.op(OpKind.ACCUM_SUM, 1)],
                [(2, (1, 0, n))],
            ),
            workloads.op(OpKind.SQUARE, 1),
        ),
        (2,),
    )
    assert graph == wanted
    # The slab of each block is cut first and the loop chunk inside it: columns 0, 1 meet columns 2, 3.
    x = np.random.default_rng(1).standard_normal((4, 12))
    np.testing.assert_allclose(run(graph, [x])[0], np.exp(x).reshape(4, 3, 2, 2).sum(2).reshape(4, 6) ** 2)


# --- refusals ---


def _refused(value: object) -> str:
    with pytest.raises(FormatError) as raised:
        from_mirage(value if isinstance(value, str) else json.dumps(value), "file.json")
    assert raised.value.where == "file.json"
    return raised.value.what


def _set(path: str, value: object) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    """The hand-written graph with one field changed."""

    def change(graph: list[dict[str, Any]]) -> list[dict[str, Any]]:
        *steps, last = (int(step) if step.isdigit() else step for step in path.split("/"))
        at: Any = graph
        for step in steps:
            at = at[step]
        at[last] = value
        return graph

    return change


BLOCK = "1/bgraph"


def _early(graph: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The result of exp is called one behind an accumulator, wherever it stands."""
    for op in graph[1]["bgraph"]["operators"]:
        for tensor in (*op["input_tensors"], *op["output_tensors"]):
            tensor["after_accum"] |= tensor["guid"] == 2
    return graph


FAULTS = {
    "padding": (_set("0/output_tensors/0/dim", [4, 12, 1, 0]), "$[0].output_tensors[0].dim: expected 2 positive"),
    "short dim": (_set("0/output_tensors/0/dim", [4]), "expected 2 positive extents"),
    "zero extent": (_set("0/output_tensors/0/dim", [4, 0, 0, 0]), "expected 2 positive extents"),
    "rank": (_set("0/output_tensors/0/num_dims", 9), "$[0].output_tensors[0].num_dims: expected `int` <= 8"),
    "strides": (_set("0/input_strides", [1]), "$[0].input_strides: expected 2 strides, got [1]"),
    "split over GPUs": (_set("0/input_map", grid_map(0)), "split over several GPUs"),
    "code": (_set("0/output_tensors/0/data_type", 945), "one of [920, 921, 930, 940, 941, 950], got 945"),
    "two versions": (_set("2/output_tensors/0/data_type", 950), "a code of one version, [920, 921, 930], got 950"),
    "unknown guid": (_set("2/input_tensors/0/guid", 77), "$[2].input_tensors[0].guid: expected the guid of an earlier"),
    "guid twice": (_set("2/output_tensors/0/guid", 8), "expected a new guid, got 8 of $[1].output_tensors[0]"),
    "huge guid": (_set("2/output_tensors/0/guid", 10**30), "$[2].output_tensors[0].guid"),
    "copy of another shape": (_set("2/input_tensors/0/dim", [6, 4, 0, 0]), "copy of $[1].output_tensors[0], which is"),
    "wrong result": (_set("2/output_tensors/0/dim", [6, 4, 0, 0]), "expected float16 [4, 6], as follows"),
    "dtensor of another shape": (_set(f"{BLOCK}/operators/0/dtensor/dim", [4, 24, 0, 0]), "operators[0].dtensor.dim"),
    "dtensor of another guid": (_set(f"{BLOCK}/operators/0/dtensor/guid", 8), "dtensor.guid: expected 7 as in"),
    "dtensor of another type": (_set(f"{BLOCK}/operators/0/dtensor/data_type", 920), "dtensor.data_type: expected 921"),
    "output of another guid": (_set(f"{BLOCK}/operators/3/dtensor/guid", 9), "dtensor.guid: expected 8 as in"),
    "omap": (
        _set(f"{BLOCK}/operators/3/output_map", grid_map(0, 1)),
        "$[1].output_tensors[0]: expected float16 [6, 4]",
    ),
    "no omap": (_set(f"{BLOCK}/operators/3/output_map", grid_map(1)), "omap y: expected a dim"),
    "tile": (_set(f"{BLOCK}/operators/0/forloop_dim", -1), "operators[0].output_tensors[0]: expected float16 [2, 4]"),
    "does not divide": (_set(f"{BLOCK}/forloop_range", 3), "multiple of 3"),
    "grid": (_set(f"{BLOCK}/grid_dim", {"x": 0, "y": 1, "z": 1}), "$[1].bgraph.grid_dim.x: expected `int` >= 1"),
    "stage": (_early, "operators[1].output_tensors[0]: expected float16 [2, 2], as follows from the operators, got"),
    "stage of a copy": (
        _set(f"{BLOCK}/operators/1/output_tensors/0/after_accum", True),
        "which is float16 [2, 2] after",
    ),
    "level": (_set(f"{BLOCK}/graph_level", "warp"), "$[1].bgraph.graph_level"),
    "epilogue": (_set(f"{BLOCK}/operators/3/epilogue", 3101), "operators[3]: object contains unknown field `epilogue`"),
    "saved over the loop": (_set(f"{BLOCK}/operators/3/forloop_dim", 0), "operators[3].forloop_dim"),
    "no accumulator": (_set(f"{BLOCK}/operators/2/op_type", "tb_exp_op"), "expected a tensor behind an accumulator"),
    "unknown field": (_set("2/scale", 3), "$[2]: object contains unknown field `scale`"),
    "no op_type": (_set("2/op_type", 1100), "$[2]: expected an operator with a text op_type"),
    "unknown operator": (_set("2/op_type", "kn_frobnicate_op"), "a counterpart here, got 'kn_frobnicate_op'"),
    "block operator outside": (_set("2/op_type", "tb_exp_op"), "a counterpart here, got 'tb_exp_op'"),
    "arity": (_set("2/op_type", "kn_add_op"), "$[2].input_tensors: expected 2 tensors for kn_add_op, got 1"),
    "norm over unknown dims": (_set("2/op_type", "kn_rms_norm_op"), "$[2]: expected normalized_size 6, got none"),
    "bgraph": (_set("1/bgraph", [1]), "$[1].bgraph: expected `object`, got `array`"),
    "no tensors": (_set(f"{BLOCK}/operators", []), "$[1].bgraph.operators: expected 1..4096 operators, got 0"),
    "no number": (_set("0/input_strides", [12, "1"]), "$[0].input_strides[1]: expected `int`, got `str`"),
    "truth for number": (_set("0/output_tensors/0/guid", True), "$[0].output_tensors[0].guid: expected `int`"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_contradictions_are_refused(name: str) -> None:
    change, words = FAULTS[name]
    assert words in _refused(change(hand_written()))


def test_texts_that_are_no_checkpoint() -> None:
    assert "expected JSON" in _refused("[")
    assert "occurs twice" in _refused('[[{"op_type": "a", "op_type": "b"}]]')
    assert "expected a list of graphs or of operators, got dict" in _refused({"graphs": []})
    assert "got an empty one" in _refused([])
    assert "expected a list of operators, got dict" in _refused([hand_written(), {}])
    assert "expected at most 4096 graphs, got 5000" in _refused([[]] * 5000)
    assert "too deep" in _refused("[" * 100_000)
    assert "at most 8388608 bytes" in _refused(" " * 9_000_000)
    many = hand_written() * 2000
    assert "expected 1..4096 operators, got 6000" in _refused(many)


def test_both_16_bit_codes_in_one_graph_are_refused() -> None:
    graph = json.loads(json.dumps(hand_written()).replace("921", "940"))
    assert from_mirage(json.dumps(graph))[0].inputs[0].tensor.dtype is DType.FLOAT16
    assert from_mirage(json.dumps(graph), half=DType.BFLOAT16)[0].inputs[0].tensor.dtype is DType.BFLOAT16
    graph[2]["output_tensors"][0]["data_type"] = 941
    assert "expected one 16-bit type in a graph, 940, got 941" in _refused(graph)


def test_operators_without_counterpart_say_why() -> None:
    for name, why in REFUSED.items():
        path = "2/op_type" if name.startswith("kn_") else f"{BLOCK}/operators/1/op_type"
        said = _refused(_set(path, name)(hand_written()))
        assert f"got '{name}': {why}" in said
        assert name not in KERNEL_ROWS
        assert name not in BLOCK_ROWS


def test_the_size_of_a_norm() -> None:
    graph = _set("2/op_type", "kn_rms_norm_op")(hand_written())
    graph[2]["normalized_size"] = 6
    assert from_mirage(json.dumps(graph))[0].ops[1] == Op(OpKind.RMS_NORM, (1,), Attrs(dim=1))
    graph[2]["normalized_size"] = 24
    assert "$[2].normalized_size: expected 6, because only the last dim" in _refused(graph)
    # A single row: the last dim is all there is.
    row = [copy.deepcopy(hand_written()[0]), graph[2]]
    for record in row:
        record["output_tensors"][0]["dim"] = [1, 12, 0, 0]
    row[1]["input_tensors"] = row[0]["output_tensors"]
    del row[1]["normalized_size"]
    assert from_mirage(json.dumps(row))[0].ops == (Op(OpKind.RMS_NORM, (0,), Attrs(dim=1)),)


def test_concat_says_its_dim_twice() -> None:
    n = None
    block = workloads.kernel(
        (0, 0),
        (1, 1, 1),
        1,
        [workloads.load((n, n, n))] * 2,
        [workloads.op(OpKind.CONCAT, 0, 1, dim=1), workloads.op(OpKind.ACCUM_SUM, 2)],
        [(3, (n, n, n))],
    )
    graph = KernelGraph((workloads.tensor("X0", 2, 4),), (block,), (1,))
    value = json.loads(to_mirage([graph]))
    (record,) = (op for op in value[0][1]["bgraph"]["operators"] if op["op_type"] == "tb_concat_1_op")
    record["concat_dim"] = 1
    assert from_mirage(json.dumps(value)) == (graph,)
    record["concat_dim"] = 0
    assert "concat_dim: expected 1 as in tb_concat_1_op, got 0" in _refused(value)


_ODD: st.SearchStrategy[Any] = st.sampled_from(
    [None, -1, 0, 1, 2, 3, 7, 8, 921, 2**40, 2**70, 1.5, "", "tb_exp_op", [], {}, True]
)


@given(st.data())
def test_any_change_is_read_or_refused(data: st.DataObject) -> None:
    """A changed file gives a well-formed graph or a FormatError, never anything else."""
    value = hand_written()
    for _ in range(data.draw(st.integers(1, 2))):
        at: Any = value
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
            assert found.what.startswith("field $")
        else:
            assert faults(found) == []


# --- a program at hand ---


def test_inputs_get_the_programs_names() -> None:
    program, candidate = SMALL["lora"]
    (graph,) = from_mirage(to_mirage([candidate]))
    assert [item.name for item in graph.inputs] == ["X0", "X1", "X2", "X3"]
    assert match_inputs(graph, program) == candidate


def test_graphs_that_do_not_fit_are_refused() -> None:
    program = SMALL["lora"][0]
    other = SMALL["gated_mlp"][1]
    with pytest.raises(GraphError) as raised:
        match_inputs(other, program, "file.json")
    assert raised.value.what == (
        "expected inputs of shapes [[4, 8], [8, 12], [8, 2], [2, 12]], got [[4, 8], [8, 12], [8, 12]]"
    )
    assert raised.value.where == "file.json"
    assert raised.value.hint
    with pytest.raises(GraphError, match=r"expected outputs of shapes \[\[4, 12\]\], got \[\[4, 12\], \[4, 12\]\]"):
        match_inputs(replace(program, outputs=(4, 7)), program)
    a, b = workloads.tensor("A", 4, 4), workloads.tensor("B", 4, 4)
    sub = (workloads.op(OpKind.SUB, 0, 1),)
    with pytest.raises(GraphError, match="expected inputs in the program's order A, B, got B, A"):
        match_inputs(KernelGraph((b, a), sub, (2,)), KernelGraph((a, b), sub, (2,)))


A, B, C = (workloads.tensor(name, 4, 4) for name in "ABC")
QUOTIENT = (workloads.op(OpKind.DIV, 0, 1),)


@pytest.mark.parametrize(
    ("program", "given", "refused"),
    [
        ("AB", "AB", False),
        ("AB", "BA", True),
        ("AB", "BC", True),  # B of both is not the same input
        ("AB", "CA", True),
        ("AB", "AC", False),  # C is what is left
        ("AB", "CB", False),
    ],
)
def test_a_name_that_both_have_stands_for_the_same_input(program: str, given: str, refused: bool) -> None:
    by_name = {"A": A, "B": B, "C": C}
    wanted, other = (KernelGraph(tuple(by_name[n] for n in names), QUOTIENT, (2,)) for names in (program, given))
    if not refused:
        assert match_inputs(other, wanted) == wanted
        return
    with pytest.raises(GraphError) as raised:
        match_inputs(other, wanted, "file.json")
    assert f"order {', '.join(program)}, got {', '.join(given)}" in raised.value.what
    assert "write them in the program's order" in raised.value.hint


def test_a_format_without_names_contradicts_none() -> None:
    """X1 over X0: what stands for them in a checkpoint is the first and the second input."""
    program = KernelGraph((replace(A, name="X1"), replace(B, name="X0")), QUOTIENT, (2,))
    value = json.loads(to_mirage([program]))
    (graph,) = graphs_of(value, names=["X1", "X0"])
    assert not isinstance(graph, FormatError)
    assert match_inputs(graph, program) == program
    (three,) = graphs_of(value, names=["X1", "X0", "X2"])
    assert not isinstance(three, FormatError)
    assert [item.name for item in three.inputs] == ["X0", "X1"]


def test_strides_are_not_read_past() -> None:
    """The same memory read by columns is another matrix."""
    program = KernelGraph((A, B), QUOTIENT, (2,))
    turned = KernelGraph((A, replace(B, strides=(1, 4))), QUOTIENT, (2,))
    for other in (turned, *from_mirage(to_mirage([turned]))):
        with pytest.raises(GraphError) as raised:
            match_inputs(other, program, "file.json")
        assert "expected input B with strides [4, 1], got [1, 4]" in raised.value.what
        assert raised.value.hint
        assert match_inputs(other, turned) == turned
    row = workloads.tensor("A", 1, 4)
    once = KernelGraph((row,), (workloads.op(OpKind.EXP, 0),), (1,))
    other = replace(once, inputs=(replace(row, strides=(77, 1)),))
    assert match_inputs(other, once).outputs == once.outputs  # nothing is stepped over along a dim of extent 1


def test_what_looks_like_a_checkpoint() -> None:
    assert is_mirage([hand_written()])
    assert is_mirage(hand_written())
    assert is_mirage([])
    assert not is_mirage({"schema": "mirage_formal/mugraph"})
    assert not is_mirage([{"schema": "mirage_formal/mugraph"}])


def test_the_document_lists_every_operator() -> None:
    text = DOCUMENT.read_text()
    words = set(re.findall(r"\b(?:kn|tb)_\w+_op\b", text))
    assert set(KERNEL_ROWS) | set(BLOCK_ROWS) <= words


def test_the_tables_stand_for_operators_of_the_level() -> None:
    for rows, level in ((KERNEL_ROWS, Level.KERNEL), (BLOCK_ROWS, Level.BLOCK)):
        for row in rows.values():
            assert level in SPECS[row.kind].levels
            assert (row.dim is not None) == ("dim" in SPECS[row.kind].required)
