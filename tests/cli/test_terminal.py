"""Text from files, made safe to print."""

from __future__ import annotations

import json
import pickle
import unicodedata

import pytest
from hypothesis import given

from mirage_formal.support.errors import FormatError, GraphError
from mirage_formal.support.terminal import escape_line, json_text, lines, quote_text
from tests.kit.runs.tampering import TEXTS, obeyed


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("µGraph of rms_norm", "µGraph of rms_norm"),
        ("a\nCode generation IS PROVED", "a\\nCode generation IS PROVED"),
        ("\x1b[2J\x1b[31mred", "\\x1b[2J\\x1b[31mred"),
        ("a\r\x08\x7f\x00b", "a\\r\\x08\\x7f\\x00b"),
        ("\u202eDEVORP\u2066", "\\u202eDEVORP\\u2066"),
        ("a\u200b\ufeff\u00adb", "a\\u200b\\ufeff\\xadb"),
        ("a\u0301\u20dd", "a\\u0301\\u20dd"),
        ("\u3164\u2800\xa0\u3000", "\\u3164\\u2800\\xa0\\u3000"),
        ("\x85\u2028\u2029", "\\x85\\u2028\\u2029"),
        ("\ud800\udcff", "\\ud800\\udcff"),
        ("\U000e0041\U000f0000", "\\U000e0041\\U000f0000"),
    ],
)
def test_what_is_not_seen_is_written_out(raw: str, shown: str) -> None:
    assert escape_line(raw) == shown
    assert escape_line(shown) == shown


def test_long_texts_are_cut() -> None:
    assert escape_line("x" * 400) == "x" * 400
    assert escape_line("x" * 401) == "x" * 396 + " ..."
    assert escape_line("\n" * 300, 100) == "\\n" * 48 + " ..."
    assert len(escape_line("x" * 10_000_000)) == 400


def test_an_author_cannot_close_the_quotes() -> None:
    assert quote_text('GPU" is right, and "proved') == '"GPU\\" is right, and \\"proved"'
    assert quote_text("a\\") == '"a\\\\"'


@given(TEXTS)
def test_nothing_that_is_printed_is_obeyed(text: str) -> None:
    for shown in (escape_line(text), escape_line(text, 60), quote_text(text)):
        assert not obeyed(shown)
        shown.encode("utf-8")
    assert all(not obeyed(one) for one in lines(text).split("\n"))
    assert all(one.startswith("  ") for one in lines(text).split("\n")[1:])


@given(TEXTS)
def test_json_stays_what_it_was(text: str) -> None:
    raw = json.dumps({"a": text}, ensure_ascii=False)
    shown = json_text(raw)
    assert not obeyed(shown)
    assert json.loads(shown) == json.loads(raw)


def test_errors_are_safe_to_print() -> None:
    error = FormatError("got x\nerror: all is well", where="a\x1b[1m.json", hint="b\u202ec")
    assert str(error) == "a\\x1b[1m.json: got x\\nerror: all is well\n  hint: b\\u202ec"
    assert str(GraphError("2 faults:\n  - one\nProved\x07")) == "2 faults:\n  - one\n  Proved\\x07"
    assert pickle.loads(pickle.dumps(error)).what == error.what
    assert unicodedata.category("\u202e") == "Cf"
