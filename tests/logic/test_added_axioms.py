"""Files of added axioms: what is read, what is refused with its place, and which equations are laws."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_formal.logic.added_axioms import (
    USUAL_AXIOMS,
    AxiomChoice,
    axioms_in_force,
    read_choice,
    stated_choice,
)
from mirage_formal.logic.axiom_laws import laws_of
from mirage_formal.logic.axioms import load_axioms
from mirage_formal.logic.consistency import check_consistency, describe_choice
from mirage_formal.support.errors import FormatError, SpaceError
from tests.kit.paths import REPOSITORY

EXAMPLES = REPOSITORY / "examples" / "axioms"


def axiom(name: str, body: str, variables: str = "") -> str:
    variables = variables or f"(x Expr){' (y Expr)' if ' y' in body else ''}"
    return f"(assert (! (forall ({variables}) (! {body} :qid {name})) :named {name}))\n"


def written(directory: Path, *axioms: str) -> str:
    file = directory / "mine.smt2"
    file.write_text("; mine\n(declare-fun exp (Expr) Expr)\n" + "".join(axioms), encoding="utf-8")
    return str(file)


GOOD = axiom("fine", "(= (exp (log x)) x)")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (axiom("a", "(= (foo x) x)"), 4, "not a term over the declared symbols"),
        (axiom("a", "(= (exp x) w)"), 4, "w is not a variable"),
        (axiom("a", "(= (exp x y) x)"), 4, "not a term"),
        (axiom("a", "(not (= x y))"), 4, "expected = or subexpr"),
        (axiom("a", "(= (exp x) x)", "(x Expr) (y Expr)"), 4, "expected variables that occur in it, got y"),
        (axiom("a", "(= x y)").replace(":qid a", ":qid b"), 4, "expected :qid a, got b"),
        (axiom("fine", "(= (exp x) x)"), 4, "stated twice"),
        (axiom("mul-comm", "(= (exp x) x)"), 4, "stated twice"),
        ("(declare-fun foo (Expr) Expr)", 4, "expected a function of abstract expressions, got foo"),
        ("(push 1)", 4, "expected a declaration or a named axiom"),
        ("\n\n(assert", 6, "closing parenthesis"),
        ("\n)", 5, "opening parenthesis"),
        ('(echo "x")', 4, "expected SMT-LIB"),
    ],
)
def test_a_fault_is_refused_with_file_and_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    file = written(tmp_path, GOOD, text)
    with pytest.raises(FormatError, match=message) as caught:
        read_choice([file])
    assert file in caught.value.where
    assert caught.value.where == f"{file}:{line}" or f"line {line}:" in str(caught.value)


def test_a_missing_file_and_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="expected a file of axioms"):
        read_choice([str(tmp_path / "none.smt2")])
    with pytest.raises(SpaceError, match="expected the name of an axiom, got sub-foo"):
        read_choice([], ["sub-foo"])


@pytest.mark.parametrize(
    ("axioms", "culprit"),
    [
        ([axiom("cancel", "(= (divide (mul x y) y) x)")], "cancel"),
        ([axiom("all", "(= x y)")], "all"),
        ([axiom("every", "(subexpr x (exp y))"), axiom("back", "(subexpr (exp x) x)")], "back"),
    ],
)
def test_an_inconsistent_axiom_is_refused_with_its_place(tmp_path: Path, axioms: list[str], culprit: str) -> None:
    file = written(tmp_path, *axioms)
    with pytest.raises(FormatError, match=f"axiom {culprit}: expected an axiom that is consistent") as caught:
        check_consistency(read_choice([file]))
    assert caught.value.where == f"{file}:{2 + len(axioms)}"


def test_consistency_is_proved_by_a_model_or_said_to_be_open() -> None:
    root, exponential = (read_choice([str(EXAMPLES / f"{name}.smt2")]) for name in ("root", "exponential"))
    assert check_consistency(root) == ""
    assert "no model proves" in check_consistency(exponential)
    assert "decided by models and z3" in describe_choice(root)[0]
    assert "a law of the normal forms" in describe_choice(exponential)[0]


def test_a_choice_is_its_statements_and_the_usual_one_is_the_projects() -> None:
    choice = read_choice([str(EXAMPLES / "root.smt2")])
    assert axioms_in_force(USUAL_AXIOMS) is load_axioms()
    assert stated_choice(choice.statements).statements == choice.statements
    assert axioms_in_force(choice).axioms.keys() - load_axioms().axioms.keys() == {"root-of-product"}
    assert "sub-exp" not in axioms_in_force(AxiomChoice(without=("sub-exp",))).axioms


def test_an_added_axiom_that_is_switched_off_is_not_added() -> None:
    assert read_choice([str(EXAMPLES / "root.smt2")], ["root-of-product"]) == USUAL_AXIOMS


@pytest.mark.parametrize(
    ("bodies", "unfit"),
    [
        (["(= (exp (log x)) x)"], []),
        (["(= (exp x) (exp (exp x)))"], []),
        (["(= (relu (exp x)) (exp x))"], []),
        (["(= (mul (exp y) (exp x)) (exp (add x y)))"], []),
        (["(= (exp (add x y)) (mul (exp x) (exp x)))"], [0]),
        (["(= (exp (add x x)) (mul (exp x) (exp x)))"], [0]),
        (["(= (exp (log x)) y)"], [0]),
        (["(= (exp (log x)) (log (exp x)))"], [0]),
        (["(= (sqrt (exp x)) x)"], [0]),
        (["(subexpr (exp x) (log x))"], [0]),
        (["(= (exp (log x)) x)", "(= (exp (log x)) (exp x))"], [1]),  # two values of exp(log(x))
        (["(= (exp (log x)) x)", "(= (log (exp x)) x)"], []),  # exp(log(exp(x))) is exp(x) by both
        (["(= (exp (log x)) x)", "(= (log (relu x)) (relu x))"], [1]),  # exp(log(relu(x))) is relu(x) or exp(relu(x))
        (["(= (exp (add x y)) (mul (exp x) (exp y)))", "(= (log (exp x)) x)"], [1]),  # log(exp(x) exp(y))
    ],
)
def test_equations_that_fit_are_laws(tmp_path: Path, bodies: list[str], unfit: list[int]) -> None:
    file = written(tmp_path, *(axiom(f"a{n}", body) for n, body in enumerate(bodies)))
    assert laws_of(read_choice([file])).unfit == tuple(f"a{n}" for n in unfit)
