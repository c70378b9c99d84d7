"""JSON parser for untrusted files: bounded, and strict about everything that two parsers could read differently.

Every JSON text of this project passes here first, before any other decoder.
"""

from __future__ import annotations

import json
import re
from math import isfinite
from typing import Any, Final

from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import MAX_DEPTH, MAX_FILE_BYTES, MAX_MARKS, MAX_NUMBER
from mirage_formal.support.terminal import quote_text

_MARKS: Final = (b"[", b"{", b",", b":", b'"')
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BRACKET: Final = re.compile(rb"[\[\]{}]")
_LONG_NUMBER: Final = re.compile(rb"[-+.0-9eE]{%d}" % (MAX_NUMBER + 1))
_ESCAPED: Final = re.compile(rb"\\u(?:[dD][89a-fA-F]|0000)")
_NO_CHARACTER: Final = re.compile("[\ud800-\udfff\\0]")
_HINT: Final = "the file is not what a search wrote: repeat the search"


def load_strict_json(data: bytes, where: str, *, limit: int = MAX_FILE_BYTES, hint: str = _HINT) -> Any:
    """Return the plain values of a JSON text.

    Sound: it is UTF-8 without a byte order mark; no object names a key twice; numbers are finite; texts hold no NUL
    and no half of a character. Its length, depth, size and the length of its numbers are bounded before it is parsed.

    Args:
        data: The text.
        where: Name of the file, for messages.
        limit: Most bytes.
        hint: What to do about a text that is refused.

    Raises:
        FormatError: It is not such a text.
    """
    try:
        return _load(data, limit)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"expected JSON: {error}", where=where, hint=hint) from None
    except FormatError as error:
        raise FormatError(error.what, where=where, hint=hint) from None


def _load(data: bytes, limit: int) -> Any:
    if len(data) > limit:
        raise FormatError(f"expected at most {limit} bytes, got {len(data)}")
    marks = sum(map(data.count, _MARKS))
    if marks > MAX_MARKS:
        raise FormatError(f"expected JSON of at most {MAX_MARKS} brackets, commas, colons and quotes, got {marks}")
    bare = _STRING.sub(b"", data)
    depth = 0
    for bracket in _BRACKET.findall(bare):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise FormatError(f"expected JSON of at most {MAX_DEPTH} nested brackets, got nesting too deep")
    if (long := _LONG_NUMBER.search(bare)) is not None:
        raise FormatError(f"expected JSON numbers of at most {MAX_NUMBER} characters, got {long[0][:20].decode()}...")
    del bare
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"expected UTF-8 text, got {error.reason} at byte {error.start}") from None
    value = json.loads(text, object_pairs_hook=_distinct, parse_float=_finite, parse_constant=_no_number)
    if _ESCAPED.search(data) is not None:
        _whole(value)
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise FormatError(f"expected distinct keys: key {quote_text(twice, 60)} occurs twice in one object")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not isfinite(number):
        raise FormatError(f"expected a finite number, got {text[:40]}")
    return number


def _no_number(text: str) -> Any:
    raise FormatError(f"expected a finite number, got {text}")


def _whole(value: Any) -> None:
    """Refuse texts with a NUL or with half of a surrogate pair, which an escape can write."""
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            if (bad := _NO_CHARACTER.search(item)) is not None:
                raise FormatError(f"expected whole characters in texts and no NUL, got \\u{ord(bad[0]):04x}")
        elif isinstance(item, dict):
            left += [*item, *item.values()]
        elif isinstance(item, list):
            left += item
