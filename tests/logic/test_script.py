"""What solvers may be asked: every form of text that is not in the closed list is refused before a solver sees it."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

import mirage_formal
from mirage_formal.check.proof.digits import mixed_radix_obligations
from mirage_formal.codegen.program.program import Int, IntBin, IntOp, Var
from mirage_formal.codegen.safety.arith import Query, query_to_smt2
from mirage_formal.logic.axioms import load_axioms
from mirage_formal.logic.script import RESERVED, Script, parse_script
from mirage_formal.logic.sexpr import format_sexpr, parse_sexprs
from mirage_formal.support.errors import FormatError
from mirage_formal.support.limits import MAX_COMMANDS, MAX_PARENTHESES, MAX_QUESTION, MAX_WIDTH

BITS = "(set-logic QF_BV)\n(declare-const a (_ BitVec 8))\n(declare-const b (_ BitVec 8))\n(declare-const p Bool)\n"
TERMS = "(set-logic QF_UF)\n(declare-sort Expr 0)\n(declare-fun f (Expr) Expr)\n(declare-const x Expr)\n"
INTS = "(set-logic QF_LIA)\n(declare-const t Int)\n"
AXIOMS = "(set-logic UFNIA)\n(declare-sort Expr 0)\n(declare-fun g (Int Expr) Expr)\n(declare-const x Expr)\n"
ASK = "(check-sat)\n"


@pytest.mark.parametrize(
    "text",
    [
        BITS + "(define-fun c () (_ BitVec 9) ((_ zero_extend 1) a))\n(assert (bvult c (_ bv511 9)))\n" + ASK,
        BITS + "(assert (ite p (= a b) (bvslt (bvadd (bvmul a b) (bvudiv a b)) (bvlshr a (_ bv2 8)))))\n" + ASK,
        "(set-info :smt-lib-version 2.6)\n(set-info :status unsat)\n"
        + TERMS
        + "(assert (! (= (f x) x) :named l.0))\n"
        + ASK,
        INTS + "(define-fun d0 () Int (mod (div t 3) 5))\n(assert (not (and (<= 0 d0) (< d0 5))))\n" + ASK,
        AXIOMS + "(assert (! (forall ((i Int) (y Expr)) (! (= (g (* i 2) y) y) :qid q)) :named q))\n" + ASK,
    ],
)
def test_what_is_in_the_closed_list_is_printed_as_it_was_read(text: str) -> None:
    script = parse_script(text)
    assert script.text == text
    assert script.assertions == text.count("(assert")
    assert f"(set-logic {script.logic})" in text
    assert parse_script("; a comment\n" + text) == script == Script(parse_sexprs(text.replace("\n", "  ")))
    assert pickle.loads(pickle.dumps(script)) == script


def test_everything_that_the_project_asks_is_in_the_closed_list() -> None:
    e = IntBin(IntOp.MOD, IntBin(IntOp.MUL, Var("tid"), Int(12)), Var("let"))
    texts = [query_to_smt2(Query((("tid", 128), ("let", 3)), (e,), (e,), (Var("let"),), (("index", e),)))]
    texts += mixed_radix_obligations((5, 3, 2)).values()
    for text in texts:
        assert parse_script(text).text == text
    axioms = load_axioms()
    assert axioms.script.assertions == len(axioms.axioms)


def body(term: str, head: str = BITS) -> str:
    return f"{head}(assert {term})\n{ASK}"


REFUSED: dict[str, str] = {
    # The attack: z3 appends to the file, cvc5 empties it.
    "an output channel after an assertion": BITS
    + '(assert (= a a))(set-option :regular-output-channel "/tmp/x")(echo "hello")\n'
    + ASK,
    "an output channel": '(set-option :regular-output-channel "/tmp/x")\n' + body("p"),
    "an option": "(set-option :produce-models true)\n" + body("p"),
    "an echo": BITS + "(echo hello)\n" + ASK,
    "a string": BITS + '(echo "hello")\n' + ASK,
    "a quoted symbol": BITS + "(assert |a b|)\n" + ASK,
    "a quoted symbol that hides a command": BITS + "(declare-const |p) (exit| Bool)\n" + ASK,
    "two assertions on a line": BITS + "(assert p)(assert p)\n" + ASK,
    "an assertion on two lines": BITS + "(assert\np)\n" + ASK,
    "a space that is not printed": BITS + "(assert  p)\n" + ASK,
    "a comment after a command": BITS + "(assert p) ; ok\n" + ASK,
    "a carriage return": BITS + "(assert p)\r\n" + ASK,
    "a question in the middle": BITS + ASK + "(assert p)\n" + ASK,
    "two questions": BITS + ASK + ASK,
    "no question": BITS + "(assert p)\n",
    "nothing": "",
    "no logic": "(declare-const p Bool)\n(assert p)\n" + ASK,
    "another logic": body("p").replace("QF_BV", "ALL"),
    "two logics": "(set-logic QF_UF)\n" + body("p"),
    "information": '(set-info :source "x")\n' + body("p"),
    "information that is late": BITS + "(set-info :status unsat)\n" + ASK,
    "a status of another kind": "(set-info :status sat)\n" + body("p"),
    "a declared name defined": BITS + "(define-fun a () (_ BitVec 8) b)\n" + ASK,
    "a declared name declared": BITS + "(declare-const a Bool)\n" + ASK,
    "a builtin defined": BITS + "(define-fun = () Bool false)\n" + ASK,
    "a builtin with operands defined": BITS
    + "(define-fun bvult ((x (_ BitVec 8)) (y (_ BitVec 8))) Bool false)\n"
    + ASK,
    "true declared": BITS + "(declare-const true Bool)\n" + ASK,
    "implies declared": TERMS + "(declare-fun implies (Bool Bool) Bool)\n" + ASK,
    "a name of the solvers": BITS + "(declare-const @a Bool)\n" + ASK,
    "a number declared": BITS + "(declare-const 7 Bool)\n" + ASK,
    "a label that is a constant": BITS + "(assert (! p :named a))\n" + ASK,
    "a label used as a term": BITS + "(assert (! p :named q))\n(assert q)\n" + ASK,
    "another annotation": BITS + "(assert (! p :pattern (p)))\n" + ASK,
    "a function of bit-vectors": BITS + "(declare-fun h (Bool) Bool)\n" + ASK,
    "a recursive definition": BITS + "(define-fun-rec c () Bool c)\n" + ASK,
    "a definition of itself": BITS + "(define-fun c () Bool c)\n" + ASK,
    "a definition of another sort": BITS + "(define-fun c () Bool a)\n" + ASK,
    "a name that is not declared": body("c"),
    "a name declared later": BITS + "(assert q)\n(declare-const q Bool)\n" + ASK,
    "a builtin that is not in the list": body("(bvule a b)"),
    "an assertion that is no formula": body("a"),
    "a keyword": body(":named"),
    "a hexadecimal": body("(= a #xff)"),
    "an application of nothing": body("()"),
    "a symbol in brackets": body("(p)"),
    "no operands": body("(and)"),
    "too few operands": body("(= a)"),
    "too many operands": body("(bvult a b a)"),
    "operands of two widths": body("(= a (_ bv1 9))"),
    "operands of two sorts": body("(= a p)"),
    "a number in bit-vectors": body("(= a 1)"),
    "a value beyond the width": body("(= a (_ bv256 8))"),
    "a width of 0": body("p").replace("BitVec 8", "BitVec 0"),
    "a width beyond the bound": body("p").replace("BitVec 8", f"BitVec {MAX_WIDTH + 1}"),
    "an extension beyond the bound": body(f"(= a ((_ zero_extend {MAX_WIDTH}) a))"),
    "another indexed operator": body("(= a ((_ sign_extend 0) a))"),
    "let": body("(let ((q p)) q)"),
    "a quantifier": body("(forall ((q Bool)) q)"),
    "a quantifier below a quantifier": body("(forall ((i Int)) (forall ((j Int)) (= i j)))", AXIOMS),
    "a quantifier over a declared name": body("(forall ((x Int)) (= x x))", AXIOMS),
    "a quantifier over a name twice": body("(forall ((i Int) (i Int)) (= i i))", AXIOMS),
    "a sort that is not declared": "(set-logic QF_UF)\n(declare-const x Expr)\n" + ASK,
    "another sort": TERMS + "(declare-sort Other 0)\n" + ASK,
    "a sort with parameters": TERMS.replace("Expr 0", "Expr 1") + ASK,
    "a function of other sorts": body("(= (f true) x)", TERMS),
    "integers among terms": body("(= 1 1)", TERMS),
    "a real": body("(< t 1.5)", INTS),
    "a number with a leading 0": body("(< t 01)", INTS),
    "an unbalanced end": BITS + "(assert p))\n" + ASK,
    "an unbalanced start": BITS + "((assert p)\n" + ASK,
    "a symbol between commands": BITS + "p\n" + ASK,
    "a reset": BITS + "(reset)\n" + ASK,
    "an exit": BITS + "(exit)\n" + ASK,
    "a scope": BITS + "(push 1)\n" + ASK,
    "an inclusion": BITS + "(include x)\n" + ASK,
    "deep nesting": body("(not " * MAX_PARENTHESES + "p" + ")" * MAX_PARENTHESES),
    "very deep nesting": body("(not " * 1_000_000 + "p" + ")" * 1_000_000),
    "very deep nesting that does not end": BITS + "(" * 3_000_000,
    "too many commands": BITS + "(assert p)\n" * MAX_COMMANDS + ASK,
    "too long": BITS + ";" * MAX_QUESTION + "\n" + ASK,
}


@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(FormatError) as refusal:
        parse_script(REFUSED[name], "questions")
    assert refusal.value.where == "questions"
    assert "expected" in refusal.value.what
    assert len(refusal.value.what) < 600


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_no_name_is_given_that_has_a_meaning(name: str) -> None:
    with pytest.raises(FormatError):
        parse_script(TERMS + f"(declare-const {name} Expr)\n" + ASK)


def test_nesting_up_to_the_bound_is_read_and_printed() -> None:
    inside = MAX_PARENTHESES - 1
    text = body("(not " * inside + "p" + ")" * inside)
    assert parse_script(text).text == text


def test_deep_terms_of_our_own_are_refused_too() -> None:
    e: tuple[object, ...] | str = "p"
    for _ in range(300_000):
        e = ("not", e)
    with pytest.raises(FormatError):
        Script([*parse_sexprs(BITS), ("assert", e), ("check-sat",)])  # type: ignore[list-item]
    with pytest.raises(FormatError):
        format_sexpr(e)  # type: ignore[arg-type]


def test_a_script_cannot_be_made_of_text_or_changed() -> None:
    script = parse_script(body("p"))
    with pytest.raises(FormatError):
        Script(body("p"))
    for name in ("text", "logic", "other"):
        with pytest.raises(AttributeError):
            setattr(script, name, "x")
        with pytest.raises(AttributeError):
            delattr(script, name)


#: What makes a solver read text, and the only modules that may.
READERS = {"from_string", "from_file", "parse_smt2_string", "parse_smt2_file", "InputParser", "setStringInput"}
ALLOWED = {
    "logic/solver_subprocess.py": {"from_string", "InputParser", "setStringInput"},
    "logic/session.py": {"parse_smt2_string"},
}


def test_nothing_else_hands_text_to_a_solver() -> None:
    root = Path(mirage_formal.__file__).parent
    found: dict[str, set[str]] = {}
    importers: set[str] = set()
    for path in root.rglob("*.py"):
        name = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        used: set[str] = set()
        modules: set[str] = set()
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(attr=text) | ast.Name(id=text) | ast.Constant(value=str(text)):
                    used.add(text)
                case ast.Import(names=names):
                    modules |= {alias.name for alias in names}
                case ast.ImportFrom(module=module):
                    modules.add(module or "")
        if used & READERS:
            found[name] = used & READERS
        if {module.split(".")[0] for module in modules} & {"z3", "cvc5"}:
            importers.add(name)
    assert found == ALLOWED
    assert importers == {"logic/solver_subprocess.py", "logic/session.py"}
