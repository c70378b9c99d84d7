"""Programs as text: exact, one text for each, and hostile texts refused before anything is made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.program import program as ir
from mirage_formal.codegen.program import serialization
from mirage_formal.codegen.program.serialization import MAX_BYTES, TABLES, decode_programs, encode_programs
from mirage_formal.codegen.target import load_target
from mirage_formal.records import SCHEMA_VERSION
from mirage_formal.records import programs as records
from mirage_formal.support.errors import FormatError
from tests.kit.kernels import emulated_programs, example_kernels, safety_programs
from tests.kit.kernels.safety_programs import mutants
from tests.kit.sampling import share


@cache
def real() -> tuple[ir.Program, ...]:
    """Programs of all examples, and those that other tests write by hand."""
    target = load_target("h200")
    found: list[ir.Program] = []
    for name, graph in example_kernels.fastest().items():
        steps = generate(graph, target).steps
        assert steps, name
        found += [step.program for step in steps if isinstance(step, GeneratedKernel)]
    for name in example_kernels.EXAMPLES:
        steps = generate(example_kernels.real(name), target).steps
        found += [step.program for step in steps if isinstance(step, GeneratedKernel)]
    by_hand = [getattr(safety_programs, name)() for name in ("gemm", "softmax", "elementwise", "generic", "ring")]
    hopper = (*emulated_programs.WARPGROUP_PRODUCTS, *emulated_programs.PIPELINES)
    return (*found, *emulated_programs.every_kernel(), *hopper, *by_hand)


def test_every_program_reads_as_it_was_written() -> None:
    assert len(real()) > 50
    for program in share(real(), 3, 0):
        text = encode_programs([program])
        assert decode_programs(text) == (program,)
        assert encode_programs(decode_programs(text)) == text
        assert len(text) < 64 << 10
        assert emit_cuda(decode_programs(text)[0]) == emit_cuda(program)
    assert decode_programs(encode_programs(real())) == real()


def test_a_text_that_gives_other_programs_is_told_as_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "decode_programs", lambda text: ())
    with pytest.raises(FormatError, match=r"this is a bug of mirage_formal\n.*report it with the program"):
        encode_programs([safety_programs.softmax()])


def test_texts_of_before_kernels_said_that_they_are_alone_are_read() -> None:
    """The field is written only where it is true."""
    program = replace(safety_programs.softmax(), alone=False)
    text = encode_programs([program])
    assert b"alone" not in text
    assert decode_programs(text) == (program,)
    told = text.replace(b'"name":"softmax",', b'"name":"softmax","alone":false,')
    assert told != text
    with pytest.raises(FormatError, match="one text"):
        decode_programs(told)
    assert decode_programs(encode_programs([replace(program, alone=True)])) == (replace(program, alone=True),)


def test_every_class_has_an_entry_with_the_same_fields() -> None:
    unions = {"integers": ir.IntExpr, "values": ir.Value, "statements": ir.Stmt}
    for table, union in unions.items():
        assert set(TABLES[table]) == set(union.__args__)
        for kind, entry in TABLES[table].items():
            assert tuple(field.name for field in fields(kind)) == entry.__struct_fields__
    parts = (
        (ir.Param, records.ParamEntry),
        (ir.SharedBuffer, records.SharedBufferEntry),
        (ir.Pipeline, records.PipelineEntry),
    )
    for kind, entry in parts:
        assert tuple(field.name for field in fields(kind)) == entry.__struct_fields__


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_small_mistakes_are_written_as_they_are(data: st.DataObject) -> None:
    """Programs that differ have texts that differ."""
    program = data.draw(st.sampled_from([safety_programs.ring(), safety_programs.softmax(), safety_programs.gemm()]))
    found = [changed for _, changed in mutants(program)]
    other = data.draw(st.sampled_from(found))
    assert decode_programs(encode_programs([other])) == (other,)
    assert (encode_programs([other]) == encode_programs([program])) == (other == program)


@given(st.floats(allow_nan=False, width=64))
def test_floats_are_exact(number: float) -> None:
    program = emulated_programs.elementwise(ir.Combine(ir.BinaryFn.ADD, ir.Real(number), ir.Real(0.0)))
    program = replace(program, body=(*program.body, ir.Registers("r", 1, initial=-0.0)))
    (back,) = decode_programs(encode_programs([program]))
    assert back == program
    last = back.body[-1]
    assert isinstance(last, ir.Registers)
    assert last.initial is not None
    assert math.copysign(1, last.initial) == -1
    assert repr(back) == repr(program)  # 0.0 and -0.0 are equal


# --- hostile texts ---------------------------------------------------------------------------------------------------


def parsed() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(encode_programs([safety_programs.ring()]))
    return value


def written(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"


def edited(change: Callable[[dict[str, Any]], Any]) -> bytes:
    record = parsed()
    change(record["programs"][0])
    return written(record)


def doubling(program: dict[str, Any]) -> None:
    """A sum of 2^60 terms in 60 entries."""
    start = len(program["integers"])
    program["integers"] += [{"is": "bin", "op": "+", "a": start + i - 1, "b": start + i - 1} for i in range(60)]


def chain(program: dict[str, Any]) -> None:
    start = len(program["integers"])
    program["integers"] += [{"is": "bin", "op": "+", "a": 0, "b": start + i - 1} for i in range(200)]


HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "nothing": (lambda: b"", "expected JSON"),
    "no object": (lambda: b"[]", "expected a ProgramsRecord"),
    "a part": (lambda: encode_programs([safety_programs.ring()])[:200], "expected JSON"),
    "deep nesting": (lambda: b"[" * 2_000_000, "too deep"),
    "deep objects": (lambda: b'{"programs":' * 600_000, "too deep"),
    "deep in a field": (
        lambda: encode_programs([safety_programs.ring()]).replace(b'"threads":', b'"threads":' + b"[" * 500_000),
        "too deep",
    ),
    "too long": (lambda: b" " * (MAX_BYTES + 1), "expected at most"),
    "an unknown field": (lambda: edited(lambda p: p.update(host="x")), "unknown field"),
    "an unknown statement": (lambda: edited(lambda p: p["statements"].append({"is": "asm", "text": "trap;"})), "asm"),
    "an unknown operator": (lambda: edited(lambda p: p["integers"].append({"is": "bin", "op": "<<"})), "<<"),
    "an unknown function": (
        lambda: edited(lambda p: p["values"].append({"is": "apply", "fn": "system", "a": 0})),
        "system",
    ),
    "an unknown type": (lambda: edited(lambda p: p["params"][0].update(dtype="float64")), "float64"),
    "a later entry": (
        lambda: edited(lambda p: p["integers"].insert(0, {"is": "bin", "op": "+", "a": 0, "b": 0})),
        "expected an earlier entry",
    ),
    "a body beyond the table": (lambda: edited(lambda p: p.update(body=[60_000])), "expected an entry of statements"),
    "a producer beyond the table": (
        lambda: edited(lambda p: p.update(producer=[60_000])),
        "expected an entry of statements",
    ),
    "a producer that says nothing": (lambda: edited(lambda p: p.update(producer=[])), "one text"),
    "a pipeline without slots": (
        lambda: edited(lambda p: p.update(pipelines=[{"name": "p", "slots": 0, "bytes": 16}])),
        ">= 1",
    ),
    "a negative reference": (lambda: edited(lambda p: p.update(body=[-1])), ">= 0"),
    "a boolean reference": (lambda: edited(lambda p: p.update(body=[True])), "expected a ProgramsRecord"),
    "a large number": (lambda: edited(lambda p: p["integers"].append({"is": "int", "value": 1 << 31})), "2147483647"),
    "a huge number": (
        lambda: edited(lambda p: p["integers"].append({"is": "int", "value": 10**400})),
        "128 characters",
    ),
    "an extent of 0": (lambda: edited(lambda p: p.update(grid=[0, 1, 1])), ">= 1"),
    "a name with a line break": (lambda: edited(lambda p: p.update(name="kernel\n")), "name"),
    "a name of code": (lambda: edited(lambda p: p.update(name="x(){}//")), "name"),
    "not a number": (lambda: edited(lambda p: p["values"].append({"is": "real", "value": "nan"})), "value"),
    "exponential": (lambda: edited(doubling), "nodes"),
    "a chain": (lambda: edited(chain), "nodes"),
    "an unused entry": (lambda: edited(lambda p: p["values"].append({"is": "real", "value": "0x1.8p+77"})), "one text"),
    "an entry twice": (
        lambda: edited(lambda p: p["statements"].append(p["statements"][p["body"][-1]])),
        "one text",
    ),
    "a key twice": (
        lambda: encode_programs([safety_programs.ring()]).replace(b'"threads":', b'"threads":1,"threads":'),
        "occurs twice",
    ),
    "white space": (lambda: encode_programs([safety_programs.ring()]) + b" ", "one text"),
    "many programs": (
        lambda: written({"schema_version": SCHEMA_VERSION, "programs": parsed()["programs"] * 1025}),
        "1024",
    ),
    "another version": (
        lambda: encode_programs([]).replace(b'"schema_version":', b'"schema_version":9'),
        "schema_version",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_are_refused(name: str) -> None:
    make, what = HOSTILE[name]
    with pytest.raises(FormatError) as error:
        decode_programs(make())
    assert what in str(error.value)


def test_what_could_not_be_read_again_is_not_written() -> None:
    deep: ir.Value = ir.Real(1.0)
    for _ in range(300):
        deep = ir.Apply(ir.KernelFn.NEG, deep)
    with pytest.raises(FormatError, match="nodes"):
        encode_programs([emulated_programs.elementwise(deep)])
    with pytest.raises(FormatError):
        encode_programs([replace(safety_programs.ring(), name="no name")])
