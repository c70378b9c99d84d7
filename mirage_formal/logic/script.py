"""Closed subset of SMT-LIB 2.6 for solver queries, as a value that only this module can make.

A ``Script`` is one query: declarations, definitions of names that are new, assertions, and ``(check-sat)`` at its
end, over a closed list of logics, sorts and symbols. It is made from commands as S-expressions, or from text that our
own reader turns into S-expressions; its text is printed from these. Solvers take scripts and no other text, so they
never read a line that this module did not print: no option, no output channel, no macro that hides a symbol.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NoReturn

from mirage_formal.logic.sexpr import SExpr, format_sexpr, parse_sexprs
from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import MAX_COMMANDS, MAX_DIGITS, MAX_PARENTHESES, MAX_QUESTION, MAX_WIDTH

#: A sort: "Bool", "Int", "Expr", or the width of a bit-vector.
Sort = str | int
#: The sort of an application of a builtin symbol to operands of these sorts; None if there is none.
_Rule = Callable[[Sequence[Sort]], Sort | None]


class Script:
    """One query for solvers, well-formed because there is no other way to make one.

    Sound: every command is in the closed list, every symbol that is used is builtin there or declared before with
    these sorts, no name is given twice or taken from what is builtin, and ``text`` is printed from those commands. So
    what a solver says about ``text`` is about these assertions and has no other effect.

    Attributes:
        logic: The logic that it sets.
        assertions: Number of its assertions.
        text: The query as solvers read it.
    """

    __slots__ = ("assertions", "logic", "text")

    logic: str
    assertions: int
    text: str

    def __init__(self, commands: Iterable[SExpr], where: str = "") -> None:
        """Check the commands against the closed list, and print them as the script's text.

        Raises:
            FormatError: Names the first command that is not in the closed list.
        """
        reader = _Reader(where)
        lines: list[str] = []
        size = 0
        for number, command in enumerate(commands, 1):
            if number > MAX_COMMANDS:
                raise FormatError(f"expected at most {MAX_COMMANDS} commands", where=where)
            reader.command(command)
            lines.append(format_sexpr(command))
            size += len(lines[-1]) + 1
            if size > MAX_QUESTION:
                raise FormatError(f"expected at most {MAX_QUESTION} characters", where=where)
        if not reader.asked:
            raise FormatError("expected one question, (check-sat) at the end of its text", where=where)
        put = object.__setattr__
        put(self, "logic", reader.logic)
        put(self, "assertions", reader.assertions)
        put(self, "text", "\n".join([*lines, ""]))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a Script never changes")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError("a Script never changes")

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Script) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Script({self.logic}, {self.assertions} assertions, {len(self.text)} characters)"

    def __reduce__(self) -> tuple[Callable[[str], Script], tuple[str]]:
        return parse_script, (self.text,)  # checked again wherever it comes to


def parse_script(text: str, where: str = "") -> Script:
    """Return the script of a text with one command on a line and nothing between except whole lines of comment.

    Sound: the text's commands are those of the script: apart from comments, which are whole lines, it is what the
    script prints, byte by byte.

    Raises:
        FormatError: The text is anything else.
    """
    script = Script(parse_sexprs(text, where), where)
    lines = text.split("\n")
    if ";" in text:
        lines = [line for line in lines if not line.startswith(";")]
    printed = script.text.split("\n")
    if lines != printed:
        pairs = enumerate(zip(lines, printed, strict=False))
        at = next((i for i, (got, wanted) in pairs if got != wanted), min(len(lines), len(printed)))
        wanted, got = (some[at][:120] if at < len(some) else "the end" for some in (printed, lines))
        raise FormatError(f"expected one command on each line, {wanted!r}, got {got!r}", where=where)
    return script


# --- symbols ---------------------------------------------------------------------------------------------------------


def _fixed_sorts(*sorts: Sort) -> _Rule:
    """Return the rule of a symbol that takes operands of exactly these sorts; the last one is the result's sort."""
    *wanted, result = sorts
    return lambda got: result if list(got) == wanted else None


def _uniform(sort: Sort, result: Sort, least: int = 1) -> _Rule:
    """Return the rule of a symbol that takes any number of operands of one sort, at least ``least``."""
    return lambda got: result if len(got) >= least and all(one == sort for one in got) else None


def _equal(got: Sequence[Sort]) -> Sort | None:
    return "Bool" if len(got) >= 2 and len(set(got)) == 1 else None


def _ite(got: Sequence[Sort]) -> Sort | None:
    return got[1] if len(got) == 3 and got[0] == "Bool" and got[1] == got[2] else None


def _bits(got: Sequence[Sort]) -> Sort | None:
    return got[0] if len(got) == 2 and isinstance(got[0], int) and got[0] == got[1] else None


def _bit_comparison(got: Sequence[Sort]) -> Sort | None:
    return None if _bits(got) is None else "Bool"


_CORE: Final[dict[str, _Rule]] = {
    "not": _fixed_sorts("Bool", "Bool"),
    "and": _uniform("Bool", "Bool"),
    "or": _uniform("Bool", "Bool"),
    "=>": _fixed_sorts("Bool", "Bool", "Bool"),
    "=": _equal,
    "distinct": _equal,
    "ite": _ite,
}
_BIT_VECTORS: Final[dict[str, _Rule]] = {
    **dict.fromkeys(("bvadd", "bvsub", "bvmul", "bvudiv", "bvurem", "bvxor", "bvand", "bvlshr"), _bits),
    **dict.fromkeys(("bvult", "bvslt"), _bit_comparison),
}
_INTEGERS: Final[dict[str, _Rule]] = {
    **dict.fromkeys(("+", "-", "*"), _uniform("Int", "Int")),
    **dict.fromkeys(("div", "mod"), _fixed_sorts("Int", "Int", "Int")),
    **dict.fromkeys(("<=", "<"), _fixed_sorts("Int", "Int", "Bool")),
}
_EXTENTS: Final[dict[str, _Rule]] = {"*": _uniform("Int", "Int", 2)}

#: The builtin symbols of each logic: obligations of kernels, certificates, digit lemmas, and the axioms.
LOGICS: Final[Mapping[str, Mapping[str, _Rule]]] = {
    "QF_BV": _CORE | _BIT_VECTORS,
    "QF_UF": _CORE,
    "QF_LIA": _CORE | _INTEGERS,
    "UFNIA": _CORE | _EXTENTS,
}
#: Sorts of each logic besides Bool and bit-vectors. Expr is declared, the others are builtin.
_SORTS: Final[Mapping[str, frozenset[str]]] = {
    "QF_BV": frozenset(),
    "QF_UF": frozenset({"Expr"}),
    "QF_LIA": frozenset({"Int"}),
    "UFNIA": frozenset({"Expr", "Int"}),
}

_WORDS: Final = """
true false xor implies iff if let exists forall lambda par match as is update _ !
BINARY DECIMAL HEXADECIMAL NUMERAL STRING Bool Int Real Array String RegLan Expr
assert check-sat check-sat-assuming declare-const declare-datatype declare-datatypes declare-fun declare-sort
define-const define-fun define-fun-rec define-funs-rec define-sort display echo eval exit get-assertions get-assignment
get-info get-model get-option get-proof get-unsat-core get-value include minimize pop push reset reset-assertions
set-info set-logic set-option simplify
"""
#: Names that no script may declare: builtin symbols of our logics, words reserved by SMT-LIB, and names that z3 and
#: cvc5 define themselves in every logic.
RESERVED: Final = frozenset(_WORDS.split()).union(*LOGICS.values())

#: A simple symbol that is no number; solvers keep names that begin with @ or a full stop to themselves.
_NAME: Final = re.compile(r"[A-Za-z~!$%^&*_\-+=<>?/][A-Za-z0-9~!@$%^&*_\-+=<>.?/]{0,4095}")
_NUMERAL: Final = re.compile(rf"0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}}")
_HEADERS: Final[tuple[SExpr, ...]] = (("set-info", ":smt-lib-version", "2.6"), ("set-info", ":status", "unsat"))


def _number(text: SExpr) -> int | None:
    return int(text) if isinstance(text, str) and _NUMERAL.fullmatch(text) else None


# --- reading ---------------------------------------------------------------------------------------------------------


class _Reader:
    """Checker of the commands of one script, in order."""

    def __init__(self, where: str) -> None:
        self.logic = ""
        self.asked = False
        self.assertions = 0
        self._where = where
        self._builtin: Mapping[str, _Rule] = {}
        self._sorts: set[str] = {"Bool"}
        #: Every declared name, with the sorts of its operands and of its result.
        self._names: dict[str, tuple[tuple[Sort, ...], Sort]] = {}
        #: Names of assertions, which are not terms.
        self._labels: set[str] = set()
        self._bound: dict[str, Sort] = {}

    def command(self, command: SExpr) -> None:
        """Check the next command and record the symbols that it declares.

        Raises:
            FormatError: It is none of the closed list, or stands in the wrong place.
        """
        if self.asked:
            raise self._fault(command, "nothing after (check-sat)")
        match command:
            case ("set-info", *_) if command in _HEADERS and not self._names:
                return
            case ("set-logic", str() as logic) if logic in LOGICS and not self.logic:
                self.logic, self._builtin = logic, LOGICS[logic]
                self._sorts |= _SORTS[logic] - {"Expr"}
                return
        if not self.logic:
            raise self._fault(command, f"(set-logic L) first, where L is one of {', '.join(LOGICS)}")
        match command:
            case ("declare-sort", "Expr", "0") if "Expr" in _SORTS[self.logic] - self._sorts:
                self._sorts.add("Expr")
            case ("declare-const", str() as name, sort):
                self._declare(name, (), self._sort(sort, command), command)
            case ("declare-fun", str() as name, (_, *_) as operands, sort):
                sorts = tuple(self._sort(one, command) for one in operands)
                self._declare(name, sorts, self._sort(sort, command), command)
            case ("define-fun", str() as name, (), sort, body):
                result = self._sort(sort, command)
                if self._term(body, 1) != result:
                    raise self._fault(command, f"a definition of sort {format_sexpr(sort)}")
                self._declare(name, (), result, command)
            case ("assert", ("!", body, ":named", str() as name)):
                self._assert(body, 2)
                self._label(name, command)
            case ("assert", body):
                self._assert(body, 1)
            case ("check-sat",):
                self.asked = True
            case _:
                raise self._fault(command, "a declaration, a definition, an assertion or (check-sat)")

    def _fault(self, command: SExpr, expected: str) -> FormatError:
        return FormatError(f"expected {expected}, got {shorten_expression(command)}", where=self._where)

    def _sort(self, sort: SExpr, command: SExpr) -> Sort:
        match sort:
            case str() if sort in self._sorts:
                return sort
            case ("_", "BitVec", bits) if self.logic == "QF_BV":
                width = _number(bits)
                if width is not None and 1 <= width <= MAX_WIDTH:
                    return width
        raise self._fault(command, f"a sort of {self.logic}")

    def _declare(self, name: str, operands: tuple[Sort, ...], result: Sort, command: SExpr) -> None:
        """Declare a new name with its sorts; refuse a name that has a meaning already."""
        if operands and self.logic not in ("QF_UF", "UFNIA"):
            raise self._fault(command, f"a declaration without operands: {self.logic} has no uninterpreted functions")
        self._check_new(name, command)
        self._names[name] = operands, result

    def _label(self, name: str, command: SExpr) -> None:
        self._check_new(name, command)
        self._labels.add(name)

    def _check_new(self, name: str, command: SExpr) -> None:
        taken = name in self._names or name in self._labels or name in RESERVED
        if taken or not _NAME.fullmatch(name):
            raise self._fault(command, "a name that is new")

    def _assert(self, body: SExpr, depth: int) -> None:
        if self._term(body, depth) != "Bool":
            raise self._fault(body, "an assertion of sort Bool")
        self.assertions += 1

    def _term(self, e: SExpr, depth: int) -> Sort:
        """Return the sort of a term below ``depth`` parentheses; the bound on depth also bounds the recursion."""
        if isinstance(e, str):
            return self._atom(e)
        if depth >= MAX_PARENTHESES:
            raise FormatError(f"expected at most {MAX_PARENTHESES} nested parentheses", where=self._where)
        match e:
            case ("_", str() as value, bits) if value.startswith("bv") and self.logic == "QF_BV":
                number, width = _number(value[2:]), _number(bits)
                if number is not None and width is not None and width <= MAX_WIDTH and number < 1 << width:
                    return width
            case (("_", "zero_extend", by), operand) if self.logic == "QF_BV":
                more, inner = _number(by), self._term(operand, depth + 1)
                if more is not None and isinstance(inner, int) and inner + more <= MAX_WIDTH:
                    return inner + more
            case ("forall", (_, *_) as variables, body) if self.logic == "UFNIA":
                return self._quantified(variables, body, depth)
            case (str() as op, _, *_):
                got = [self._term(operand, depth + 1) for operand in e[1:]]
                if (rule := self._builtin.get(op)) is not None:
                    result = rule(got)
                else:
                    known = self._names.get(op)
                    result = known[1] if known is not None and list(known[0]) == got else None
                if result is not None:
                    return result
        raise self._fault(e, f"a term of {self.logic} over declared symbols")

    def _atom(self, symbol: str) -> Sort:
        if (sort := self._bound.get(symbol)) is not None:
            return sort
        if (known := self._names.get(symbol)) is not None and not known[0]:
            return known[1]
        if symbol in ("true", "false"):
            return "Bool"
        if "Int" in self._sorts and _NUMERAL.fullmatch(symbol):
            return "Int"
        raise self._fault(symbol, f"a constant of {self.logic} or a declared name")

    def _quantified(self, variables: Sequence[SExpr], body: SExpr, depth: int) -> Sort:
        """Return the sort of a universally quantified formula; no quantifier may stand inside another."""
        bound: dict[str, Sort] = {}
        for item in variables:
            match item:
                case (str() as name, str() as sort) if name not in bound:
                    self._check_new(name, item)
                    bound[name] = self._sort(sort, item)
                case _:
                    raise self._fault(item, "a variable that is new, with its sort")
        match body:
            case ("!", inside, ":qid", str() as label) if _NAME.fullmatch(label):
                body = inside
        if self._bound:
            raise self._fault(body, "no quantifier below another")
        self._bound = bound
        try:
            if self._term(body, depth + 2) != "Bool":
                raise self._fault(body, "a formula")
        finally:
            self._bound = {}
        return "Bool"


def shorten_expression(e: SExpr) -> str:
    """Return the beginning of an S-expression of any depth."""
    parts: list[str] = []
    stack: list[SExpr] = [e]
    while stack and len(parts) < 60:
        top = stack.pop()
        if isinstance(top, str):
            parts.append(top[:120])
        else:
            parts.append("(")
            stack += [")", *reversed(top[:40])]
    text = " ".join(parts).replace("( ", "(").replace(" )", ")")
    return text[:120] if not stack else f"{text[:110]} ..."
