"""Small, strict reader of SMT-LIB S-expressions: it refuses all unknown input."""

from __future__ import annotations

import re
from typing import Final

from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import MAX_PARENTHESES, MAX_QUESTION

SExpr = str | tuple["SExpr", ...]

#: Parentheses, then simple symbols, numerals and keywords. Quoted symbols and strings are not part of our files.
_TOKEN: Final = re.compile(r"[ \t\n]+|;[^\n]*\n|([()])|([A-Za-z0-9~!@$%^&*_\-+=<>.?/:]+)")


def parse_sexprs(text: str, where: str = "") -> list[SExpr]:
    """Parse all S-expressions of a text, as nested tuples of tokens.

    Raises:
        FormatError: If the text is too long or too deep, has a character that our files never have, or is not balanced.
    """
    return [e for e, _ in parse_located_sexprs(text, where)]


def parse_located_sexprs(text: str, where: str = "") -> list[tuple[SExpr, int]]:
    """Parse all S-expressions of a text, each with the position in the text at which it begins.

    Raises:
        FormatError: As in ``parse_sexprs``.
    """
    if len(text) > MAX_QUESTION:
        raise FormatError(f"expected at most {MAX_QUESTION} characters, got {len(text)}", where=where)
    stack: list[list[SExpr]] = [[]]
    begins: list[int] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            line = line_of(text, position)
            raise FormatError(f"line {line}: expected SMT-LIB, got {text[position : position + 20]!r}", where=where)
        bracket, atom = found.groups()
        if len(stack) == 1 and (atom is not None or bracket == "("):
            begins.append(position)
        position = found.end()
        if atom is not None:
            stack[-1].append(atom)
        elif bracket == "(":
            if len(stack) > MAX_PARENTHESES:
                raise FormatError(f"expected at most {MAX_PARENTHESES} nested parentheses", where=where)
            stack.append([])
        elif bracket == ")":
            if len(stack) == 1:
                line = line_of(text, position - 1)
                what = f"line {line}: expected an opening parenthesis before each closing one"
                raise FormatError(what, where=where)
            done = tuple(stack.pop())
            stack[-1].append(done)
    if len(stack) != 1:
        what = f"line {line_of(text, begins[-1])}: expected a closing parenthesis before the end of the text"
        raise FormatError(what, where=where)
    return list(zip(stack[0], begins, strict=True))


def line_of(text: str, position: int) -> int:
    """Return the number of the line, from 1, that a position of a text is in."""
    return text.count("\n", 0, position) + 1


def format_sexpr(e: SExpr) -> str:
    """Return an S-expression as text on one line.

    Raises:
        FormatError: It is deeper than anything that ``parse_sexprs`` returns.
    """
    return _format_nested(e, MAX_PARENTHESES)


def _format_nested(e: SExpr, left: int) -> str:
    if isinstance(e, str):
        return e
    if left == 0:
        raise FormatError(f"expected at most {MAX_PARENTHESES} nested parentheses")
    return f"({' '.join([_format_nested(x, left - 1) for x in e])})"
