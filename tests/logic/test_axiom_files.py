"""Reading axioms/*.smt2: names, signature, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_formal.logic.axioms import (
    FILES,
    OPAQUE_FUNCTIONS,
    Atom,
    instantiate,
    load_axioms,
    parse_axioms,
    pattern_extent,
)
from mirage_formal.logic.terms import add, mul, sum_, unary, var
from mirage_formal.support.errors import FormatError
from mirage_formal.support.resources import data_dir
from tests.kit.proofs.expressions import matches

AXIOMS = load_axioms()
X, Y, Z = var("X"), var("Y"), var("Z")


def test_the_papers_axioms_are_there() -> None:
    assert len(AXIOMS.axioms) == 20 + len(AXIOMS.functions)
    assert {"exp", "sqrt", "silu", "gelu", "relu", "sigmoid"} <= AXIOMS.functions
    equations = [a for a in AXIOMS.axioms.values() if a.conclusion.relation == "="]
    assert len(equations) == 13
    assert not any(a.premises for a in equations)


def test_named_and_qid_agree_in_the_text() -> None:
    for name in {"sub-f" if name[4:] in AXIOMS.functions else name for name in AXIOMS.axioms}:
        assert AXIOMS.text.count(f":named {name})") == 1
        assert AXIOMS.text.count(f":qid {name})") == 1


def test_one_axiom_stands_for_those_of_all_functions() -> None:
    assert frozenset(OPAQUE_FUNCTIONS) == AXIOMS.functions
    for function in OPAQUE_FUNCTIONS:
        assert AXIOMS.axioms[f"sub-{function}"].conclusion == Atom("subexpr", "x", (function, "x"))


def test_readme_explains_every_axiom() -> None:
    text = (data_dir("axioms") / "README.md").read_text(encoding="utf-8")
    for name in AXIOMS.axioms:
        assert f"`{name}`" in text or (name[4:] in AXIOMS.functions and "`sub-<f>`" in text), name


def test_digest_changes_with_the_text(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).write_text(
            (data_dir("axioms") / name).read_text(encoding="utf-8") + "; more\n", encoding="utf-8"
        )
    other = load_axioms(tmp_path)
    assert other.digest != AXIOMS.digest
    assert other.axioms == AXIOMS.axioms


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read the axioms"):
        load_axioms(tmp_path)


HEAD = "(declare-sort Expr 0)\n(declare-fun add (Expr Expr) Expr)\n(declare-fun subexpr (Expr Expr) Bool)\n"


def stated(body: str, name: str = "a", qid: str = "a", bound: str = "((x Expr) (y Expr) (i Int))") -> str:
    return HEAD + f"(assert (! (forall {bound} (! {body} :qid {qid})) :named {name}))\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (stated("(= x y)", qid="b"), "expected :qid a, got b"),
        (stated("(= x y)") + stated("(= y x)").removeprefix(HEAD), "stated twice"),
        (stated("(= x w)"), "w is not a variable"),
        (stated("(= x (exp y))"), "not a term over the declared symbols"),
        (stated("(= x i)"), "i is not a variable of sort Expr"),
        (stated("(= x (sum x y))"), "x is not an extent"),
        (stated("(< x y)"), "expected = or subexpr"),
        (stated("(= x y)", bound="((x Expr) (x Expr))"), "expected distinct variables"),
        (stated("(= x y)", bound="((x Expr) (y Real))"), "expected distinct variables of sort"),
        (HEAD + "(assert (forall ((x Expr)) (= x x)))", "expected a declaration or a named axiom"),
        (HEAD + "(declare-fun tan (Expr) Expr)", "puts x in f\\(x\\) for f = tan"),
        (HEAD + "(push 1)", "expected a declaration"),
        (HEAD + "(", "closing parenthesis"),
        (HEAD + ")", "opening parenthesis"),
        (HEAD + '(echo "x")', "line 4: expected SMT-LIB"),
    ],
)
def test_malformed_axioms_are_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse_axioms(text)


def test_matching_and_instances() -> None:
    axiom = AXIOMS.axioms["sum-mul"]
    binding: dict[str, object] = {}
    term = sum_(8, mul(X, add(Y, Z)))
    assert matches(axiom.conclusion.left, term, binding)  # type: ignore[arg-type]
    assert binding == {"i": 8, "x": X, "y": add(Y, Z)}
    assert instantiate(axiom.conclusion.left, binding) is term  # type: ignore[arg-type]
    assert instantiate(axiom.conclusion.right, binding) is mul(sum_(8, X), add(Y, Z))  # type: ignore[arg-type]
    assert not matches(axiom.conclusion.left, sum_(8, add(X, Y)), {})
    assert not matches(AXIOMS.axioms["add-comm"].conclusion.left, mul(X, Y), {})
    assert not matches(AXIOMS.axioms["sub-exp"].conclusion.right, unary("sqrt", X), {})


def test_one_variable_stands_for_one_term() -> None:
    pattern = ("add", "x", "x")
    assert matches(pattern, add(X, X), {})
    assert not matches(pattern, add(X, Y), {})


def test_products_of_extents() -> None:
    pattern = AXIOMS.axioms["sum-sum"].conclusion.right
    assert not matches(pattern, sum_(12, X), {})
    assert matches(pattern, sum_(12, X), {"i": 3, "j": 4})
    assert not matches(pattern, sum_(12, X), {"i": 3, "j": 5})
    assert pattern_extent(("*", "i", "j", "1"), {"i": 3, "j": 4}) == 12
