"""JSON and compact bytes: exact round trips, the published schema, and hostile files."""

import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.graph.formats.json import MAX_BYTES, decode_graph, encode, from_json, graph_schema_text, to_json
from mirage_formal.graph.graph import GraphDefined, Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.support.errors import FormatError
from tests.kit.graphs.graph_strategies import kernel_graphs
from tests.kit.paths import REPOSITORY

SCHEMA = REPOSITORY / "docs" / "schemas" / "mugraph.schema.json"

GRAPH: dict[str, Any] = {
    "schema": "mirage_formal/mugraph",
    "version": 1,
    "inputs": [
        {"name": "Q", "shape": [2, 64, 32], "dtype": "float16", "strides": [2048, 32, 1]},
        {"name": "K", "shape": [2, 32, 64], "dtype": "float16", "strides": [2048, 64, 1]},
    ],
    "ops": [
        {
            "type": "graph_defined",
            "operands": [0, 1],
            "graph": {
                "grid": [2, 4, 1],
                "block": [128, 1, 1],
                "forloop_range": 2,
                "reduction_dimx": 64,
                "inputs": [{"imap": [0, 1, None], "fmap": 2}, {"imap": [0, None, None], "fmap": 1}],
                "ops": [
                    {"type": "op", "kind": "matmul", "operands": [0, 1]},
                    {"type": "op", "kind": "accum_sum", "operands": [2]},
                    {
                        "type": "thread_defined",
                        "operands": [3],
                        "graph": {
                            "inputs": 1,
                            "ops": [
                                {"type": "op", "kind": "scale", "operands": [0], "factor": "1/8"},
                                {"type": "op", "kind": "exp", "operands": [1]},
                            ],
                            "outputs": [2],
                        },
                    },
                ],
                "outputs": [{"operand": 4, "omap": [0, 1, None]}],
            },
        },
        {"type": "op", "kind": "transpose", "operands": [2], "perm": [0, 2, 1]},
    ],
    "outputs": [3],
}


@settings(max_examples=200)
@given(kernel_graphs())
def test_round_trips(graph: KernelGraph) -> None:
    text = to_json(graph)
    assert from_json(text) == graph
    assert from_json(text.encode()) == graph
    assert to_json(from_json(text)) == text
    assert decode_graph(encode(graph)) == graph


@settings(max_examples=30)
@given(kernel_graphs())
def test_written_files_follow_the_schema(graph: KernelGraph) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
    validator.validate(json.loads(to_json(graph)))


def test_published_schema_is_the_generated_one() -> None:
    assert SCHEMA.read_text() == graph_schema_text()


def test_the_example_loads_and_is_readable() -> None:
    graph = from_json(json.dumps(GRAPH))
    assert isinstance(graph.ops[0], GraphDefined)
    assert json.loads(to_json(graph)) == GRAPH
    assert '{"type": "op", "kind": "matmul", "operands": [0, 1]}' in to_json(graph)
    assert max(map(len, to_json(graph).splitlines())) < 120


def test_exact_numbers_and_names_survive() -> None:
    attrs = Attrs(factor=Fraction(-(10**40) - 1, 3**80))
    item = Input("größe", DTensor((1,), DType.BFLOAT16), (0,))
    graph = KernelGraph((item,), (Op(OpKind.SCALE, (0,), attrs),), (1,))
    assert from_json(to_json(graph)) == graph


Change = Callable[[dict[str, Any]], object]


def put(*path: Any) -> Change:
    """A change that sets the last item of a path: put("ops", 0, "operands", [7])."""

    def change(value: dict[str, Any]) -> None:
        at: Any = value
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


BLOCK = ("ops", 0, "graph")
THREAD = (*BLOCK, "ops", 2, "graph")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (put("version", 2), "$.version"),
        (put("version", True), "$.version"),
        (put("version", 1.0), "$.version"),
        (put("version", "1"), "$.version"),
        (put("schema", "something/else"), "$.schema"),
        (put("extra", 1), "extra"),
        (put("inputs", {}), "$.inputs"),
        (put("inputs", 0, "name", ""), "$.inputs[0].name"),
        (put("inputs", 0, "shape", [2, 64, -32]), "$.inputs[0].shape[2]"),
        (put("inputs", 0, "shape", [2, 64, 10**30]), "$.inputs[0].shape[2]"),
        (put("inputs", 0, "shape", [1 << 31, 1 << 31]), "$.inputs[0].shape"),
        (put("inputs", 0, "shape", [1] * 100), "$.inputs[0].shape"),
        (put("inputs", 0, "shape", [2.0, 64, 32]), "$.inputs[0].shape[0]"),
        (put("inputs", 0, "shape", [True, 64, 32]), "$.inputs[0].shape[0]"),
        (put("inputs", 0, "shape", [float("nan"), 64, 32]), "finite number, got NaN"),
        (put("inputs", 0, "strides", [float("inf"), 64, 32]), "finite number, got Infinity"),
        (put("inputs", 0, "dtype", "float8"), "$.inputs[0].dtype"),
        (put("inputs", 0, "dtype", 941), "$.inputs[0].dtype"),
        (put("outputs", [4]), "$.outputs"),
        (put("outputs", [-1]), "$.outputs[0]"),
        (put("outputs", None), "$.outputs"),
        (put("ops", 1, "kind", "pow"), "$.ops[1].kind"),
        (put("ops", 1, "type", "custom"), "$.ops[1].type"),
        (put("ops", 1, "operands", [3]), "$.ops[1].operands[0]"),
        (put("ops", 0, "operands", [0, 2]), "$.ops[0].operands[1]"),
        (put("ops", 1, "operands", ["0"]), "$.ops[1].operands[0]"),
        (put("ops", 1, "operands", [0] * 5000), "$.ops[1].operands"),
        (put("ops", 1, "perm", [0, 2, 99]), "$.ops[1].perm[2]"),
        (put("ops", 1, "factor", "1/0"), "$.ops[1].factor"),
        (put("ops", 1, "factor", "2/4"), "$.ops[1].factor"),
        (put("ops", 1, "factor", "0.5"), "$.ops[1].factor"),
        (put("ops", 1, "factor", "9" * 5000), "$.ops[1].factor"),
        (put("ops", 1, "factor", 0.5), "$.ops[1].factor"),
        (put("ops", 1, "path", "../../etc/passwd"), "path"),
        (put(*BLOCK, "grid", [2, 4]), "$.ops[0].graph.grid"),
        (put(*BLOCK, "grid", [2, 4, 0]), "$.ops[0].graph.grid[2]"),
        (put(*BLOCK, "forloop_range", 1 << 40), "$.ops[0].graph.forloop_range"),
        (put(*BLOCK, "forloop_range", "4"), "$.ops[0].graph.forloop_range"),
        (put(*BLOCK, "inputs", 0, "imap", [0, 1, -1]), "$.ops[0].graph.inputs[0].imap[2]"),
        (put(*BLOCK, "inputs", 0, "imap", [0, 1]), "$.ops[0].graph.inputs[0].imap"),
        (put(*BLOCK, "ops", 0, "operands", [0, 2]), "$.ops[0].graph.ops[0].operands[1]"),
        (put(*BLOCK, "outputs", 0, "operand", 5), "$.ops[0].graph.outputs[0].operand"),
        (put(*THREAD, "ops", 0, "operands", [1]), "$.ops[0].graph.ops[2].graph.ops[0].operands[0]"),
        (put(*THREAD, "outputs", [3]), "$.ops[0].graph.ops[2].graph.outputs"),
        (put(*THREAD, "inputs", 1 << 60), "$.ops[0].graph.ops[2].graph.inputs"),
        (put(*THREAD, "ops", [{"type": "graph_defined", "operands": [], "graph": {}}]), "graph.ops[0]"),
    ],
)
def test_hostile_fields_are_named(change: Change, field: str) -> None:
    value = json.loads(json.dumps(GRAPH))
    change(value)
    with pytest.raises(FormatError) as raised:
        from_json(json.dumps(value), where="mugraph.json")
    assert field in raised.value.what
    assert raised.value.where == "mugraph.json"
    assert raised.value.hint
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize("key", ["schema", "version", "inputs", "ops", "outputs"])
def test_a_missing_field_is_named(key: str) -> None:
    value = {name: item for name, item in GRAPH.items() if name != key}
    with pytest.raises(FormatError, match=key):
        from_json(json.dumps(value))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "expected JSON"),
        ("{", "expected JSON"),
        ("[" * 200_000, "nesting too deep"),
        ('{"a":' * 200_000, "nesting too deep"),
        ("[1]", "$.schema"),
        ("null", "$.schema"),
        ('{"schema": "mirage_formal/mugraph", "schema": "mirage_formal/mugraph"}', "occurs twice"),
        ("9" * 6000, "expected JSON"),
        (b"\xff\xfe\x00\x00", "UTF-8"),
        (b"\x80abc", "UTF-8"),
        (" " * (MAX_BYTES + 1), "at most"),
    ],
)
def test_what_is_no_json_object(text: str | bytes, what: str) -> None:
    with pytest.raises(FormatError, match=what.replace("$", r"\$")):
        from_json(text)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x81" * 4000, b"\x91" * 200_000, encode(from_json(json.dumps(GRAPH)))[:-1]]
)
def test_bytes_that_are_no_graph(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_graph(data)


@given(st.integers(0, 10**9), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_gives_another_graph(place: int, byte: int) -> None:
    data = bytearray(json.dumps(GRAPH).encode())
    place %= len(data)
    if data[place] == byte:
        return
    data[place] = byte
    try:
        graph = from_json(bytes(data))
    except FormatError:
        return
    # Only white space may change without a change of the graph.
    assert graph != from_json(json.dumps(GRAPH)) or json.loads(bytes(data)) == GRAPH
