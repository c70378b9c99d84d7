"""JSON that is hostile, ambiguous or too large, for every reader of this project."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirage_formal import records
from mirage_formal.check.proof.parser import parse_tables
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.formats.mirage.checkpoint_reader import from_mirage
from mirage_formal.records import ClosingRecord, ManifestRecord, NumericsRecord, RunRecord, UnitRecord
from mirage_formal.records.partition import WholeRecord
from mirage_formal.support import limits, strict_json
from mirage_formal.support.errors import FormatError, MirageError

#: Texts that no reader takes, whatever it reads.
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "deep lists": b"[" * 2_000_000,
    "deep objects": b'{"a":' * 400_000,
    "closed deep lists": b"[" * 1_000_000 + b"]" * 1_000_000,
    "deep inside": b'{"a":' + b"[" * 100 + b"]" * 100 + b"}",
    "many values": b"[" + b"0," * 8_000_000 + b"0]",
    "many objects": b"[" + b"{}," * 5_000_000 + b"{}]",
    "many texts": b"[" + b'"",' * 3_000_000 + b'""]',
    "open text": b'["' + b'\\"' * 4_000_000,
    "open texts": b'"\\' * 1_000_000,
    "long integer": b"[" + b"9" * 1_000_001 + b"]",
    "long integer in a field": b'{"a": 1' + b"0" * 5000 + b"}",
    "long fraction": b"[0." + b"1" * 200_000 + b"]",
    "huge exponent": b"[1e999999]",
    "huge negative exponent": b"[-1e400]",
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": Infinity}',
    "minus Infinity": b'{"a": -Infinity}',
    "key twice": b'{"a": 1, "a": 1}',
    "escaped key twice": b'{"a": 1, "\\u0061": 1}',
    "key twice inside": b'[{"b": {"a": 1, "a": 2}}]',
    "lone surrogate": b'["\\ud800"]',
    "lone surrogate in a key": b'{"\\udfff": 1}',
    "surrogates in the wrong order": b'["\\udc00\\ud800"]',
    "encoded surrogate": b'["\xed\xa0\x80"]',
    "NUL": b'["\\u0000"]',
    "bare NUL": b'["\x00"]',
    "NUL after": b"[]\x00",
    "no UTF-8": b'["\xff"]',
    "overlong": b'["\xc0\xaf"]',
    "byte order mark": b"\xef\xbb\xbf[]",
    "UTF-16": "[]".encode("utf-16"),
    "UTF-32": "[]".encode("utf-32-le"),
    "bare line break in a text": b'["a\nb"]',
    "comment": b"[] // a",
    "two values": b"[] []",
    "trailing comma": b"[1,]",
    "single quotes": b"['a']",
    "leading zero": b"[01]",
    "hexadecimal": b"[0x10]",
    "plus": b"[+1]",
}
READERS: dict[str, Callable[[bytes], Any]] = {
    "plain": lambda data: strict_json.load_strict_json(data, "file.json"),
    "graph": lambda data: from_json(data, "file.json"),
    "Mirage": lambda data: from_mirage(data, "file.json"),
    "run": lambda data: records.decode(data, RunRecord, "file.json"),
    "unit": lambda data: records.decode(data, UnitRecord, "file.json"),
    "manifest": lambda data: records.open_sealed(data, ManifestRecord, "file.json"),
    "numerics": lambda data: records.open_sealed(data, NumericsRecord, "file.json"),
    "whole": lambda data: records.open_sealed(data, WholeRecord, "file.json"),
    "proof log": lambda data: records.decode_proof(data, "file.json"),
    "proof": parse_tables,
}


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_takes_it(reader: str, text: str) -> None:
    with pytest.raises((FormatError, ProofError)) as raised:
        READERS[reader](HOSTILE[text])
    assert type(raised.value) is ProofError or raised.value.where == "file.json"
    assert len(str(raised.value)) < 800


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("field", ["graph", "files"])
def test_what_is_inside_of_a_record_is_no_exception(text: str, field: str) -> None:
    """Fields that are read later are text of their own inside of a record."""
    record = b'{"schema_version": 3, "' + field.encode() + b'": ' + HOSTILE[text] + b"}"
    if text in ("nothing", "two values", "comment"):
        return
    with pytest.raises(FormatError):
        records.decode(record, ManifestRecord, "file.json")


def test_bounds_are_exact() -> None:
    deep = b"[" * limits.MAX_DEPTH + b"]" * limits.MAX_DEPTH
    assert strict_json.load_strict_json(deep, "") is not None
    with pytest.raises(FormatError, match="nested"):
        strict_json.load_strict_json(b"[" + deep + b"]", "")
    number = b"1" * limits.MAX_NUMBER
    assert strict_json.load_strict_json(number, "") == int(number)
    with pytest.raises(FormatError, match="numbers of at most"):
        strict_json.load_strict_json(number + b"1", "")
    with pytest.raises(FormatError, match="at most 4 bytes, got 5"):
        strict_json.load_strict_json(b"12345", "", limit=4)


def test_brackets_and_digits_in_texts_do_not_count() -> None:
    text = "[" * 1000 + "9" * 1000 + '\\"{' + "\\"
    assert strict_json.load_strict_json(json.dumps({text: text}).encode(), "") == {text: text}


@pytest.mark.parametrize(
    "data", [b'\r\n{"a":\t1}\r\n', b'{"a": 1, "b": {"a": 1}, "c": [{"a": 1}]}', '["µ \U0001f600"]'.encode()]
)
def test_what_is_json_is_read(data: bytes) -> None:
    assert strict_json.load_strict_json(data, "") == json.loads(data)
    assert strict_json.load_strict_json(b'["\\ud83d\\ude00 \\u00b5"]', "") == ["\U0001f600 µ"]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**100), 10**100)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_every_value_comes_back(value: object, ascii_only: bool, indent: int | None) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert strict_json.load_strict_json(data, "") == value


@given(
    st.binary(max_size=60)
    | st.lists(
        st.sampled_from(
            [
                b"[",
                b"]",
                b"{",
                b"}",
                b'"',
                b"\\",
                b",",
                b":",
                b"1",
                b"e9",
                b"NaN",
                b"-",
                b".",
                b"true",
                b"\\ud800",
                b"\xc3",
                b" ",
                b"\n",
                b"\x00",
                b"a",
            ]
        ),
        max_size=30,
    ).map(b"".join)
)
def test_whatever_is_read_has_one_meaning(data: bytes) -> None:
    """Two other readers understand the same."""
    try:
        value = strict_json.load_strict_json(data, "")
    except FormatError:
        return
    assert json.loads(data.decode()) == value
    assert msgspec.json.decode(data) == value


def test_a_message_quotes_no_more_than_a_line() -> None:
    with pytest.raises(MirageError) as raised:
        strict_json.load_strict_json(
            json.dumps({"x" * 9000: 1}).replace("}", ', "' + "x" * 9000 + '": 2}').encode(), ""
        )
    assert len(str(raised.value)) < 300
    closing = ClosingRecord(certificates=3, obligations=2, equivalences=1, digits=4, graph="a" * 64, program="b" * 64)
    twice = records.json_line(closing).replace(b'"digits":4', b'"digits":4,"digits":5')
    with pytest.raises(FormatError, match='key "digits" occurs twice'):
        records.decode_proof(twice, "proof.jsonl")
