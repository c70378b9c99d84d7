"""What the kernel rests on: its imports, its size, and the list in docs/trust.md."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from mirage_formal.check.minimal_check import main
from mirage_formal.check.trusted_code import CLAIMS, RULES, count_lines, total_lines, transitive_imports, trust_tables
from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.verdict import Equivalent
from mirage_formal.prove.equality.prove import prove
from tests.kit.paths import REPOSITORY
from tests.kit.runs.known_engine import PROGRAMS

KERNEL = REPOSITORY / "mirage_formal" / "check" / "proof"
ALLOWED = (
    "mirage_formal.graph.",
    "mirage_formal.logic.",
    "mirage_formal.support.errors",
    "mirage_formal.support.limits",
    "mirage_formal.check.proof.",
)


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(node.module or "")
    return found


def test_the_kernel_imports_only_what_it_may() -> None:
    files = sorted(KERNEL.rglob("*.py"))
    assert len(files) > 8
    for path in files:
        for name in imports(path):
            top = name.split(".")[0]
            if top == "sympy":
                assert path.name == "sympy_crosscheck.py", path
            elif top == "mirage_formal":
                assert f"{name}.".startswith(ALLOWED), f"{path} imports {name}"
            else:
                assert top in sys.stdlib_module_names, f"{path} imports {name}"


def test_replaying_loads_no_solver_and_no_library() -> None:
    script = "import sys, mirage_formal.check.proof.replay\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert not {"numpy", "sympy", "z3", "cvc5", "msgspec"} & set(done.stdout.split())


def test_the_rules_stay_small() -> None:
    assert total_lines(RULES)[0] <= 992


def test_equivalence_of_a_directory_rests_on_little() -> None:
    names = transitive_imports(CLAIMS["equivalent, of a candidate's directory"])
    assert total_lines(names)[0] <= 3567
    prefixes = ("mirage_formal.check.proof.", "mirage_formal.graph.")
    own = {
        "check.proof_composition",
        "check.minimal_check",
        *(f"support.{x}" for x in ("errors", "files", "limits", "strict_json", "terminal")),
    }
    assert {n.removeprefix("mirage_formal.") for n in names if not n.startswith(prefixes)} == own


def test_imports_are_followed_wherever_they_stand() -> None:
    """What is loaded when the smallest check runs is counted, but for the packages' own beginnings."""
    script = "import sys, mirage_formal.check.minimal_check as one\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    alone = "import sys, mirage_formal\nprint(*sys.modules)"
    before = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    loaded = {n for n in set(done.stdout.split()) - set(before.stdout.split()) if n.startswith("mirage_formal.")}
    counted = set(transitive_imports("mirage_formal.check.minimal_check"))
    assert {n for n in loaded - counted if count_lines(n)[0]} == set()


def test_docs_count_the_lines_that_are_there() -> None:
    """Run ``python -m mirage_formal.check.trusted_code`` and copy its tables when this fails."""
    text = (REPOSITORY / "docs" / "trust.md").read_text()
    for part in trust_tables().split("\n\n"):
        assert part in text


@pytest.mark.parametrize("equal", [True, False])
def test_the_smallest_check_says_what_check_says(tmp_path: Path, equal: bool) -> None:
    """On a candidate as a run leaves it, and on the same with another graph of the same interface."""
    program, candidates = PROGRAMS["rms_norm"]()[0], PROGRAMS["rms_norm"]()
    verdict = prove(program, candidates[1])
    assert isinstance(verdict, Equivalent)
    (tmp_path / "proof").mkdir()
    (tmp_path / "proof" / "equivalence.json").write_bytes(verdict.proof)
    (tmp_path / "mugraph.json").write_text(to_json(candidates[1 if equal else 0]))
    (tmp_path / "verification.json").write_text(f'{{"program": {to_json(program)}}}')
    command = [sys.executable, "-m", "mirage_formal.check.minimal_check", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == (0 if equal else 1), done.stderr
    assert done.stdout.startswith("equivalent: ") == equal
    assert done.stderr.startswith("not established: ") != equal


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"[" * 100_000, b'{"program": 1}', b"\xff"])
def test_the_smallest_check_survives_any_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes) -> None:
    (tmp_path / "proof").mkdir()
    for name in ("mugraph.json", "verification.json", "proof/equivalence.json"):
        (tmp_path / name).write_bytes(data)
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "Traceback" not in said.err


def test_every_rule_that_accepts_says_why() -> None:
    names = (
        "ring",
        "index_substitution",
        "laws",
        "tensor_steps",
        "segmented_tensors",
        "elaborate",
        "operator_terms",
        "replay",
    )
    for name in names:
        assert "Sound:" in (KERNEL / f"{name}.py").read_text(), name
    laws = ast.parse((KERNEL / "laws.py").read_text())
    rules = {"_sum", "_max", "_pmax", "_content"}
    checks = [n for n in laws.body if isinstance(n, ast.FunctionDef) and n.name in rules]
    assert len(checks) == 4
    assert all("Sound:" in (ast.get_docstring(n) or "") for n in checks)
