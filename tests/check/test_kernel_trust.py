"""What the kernel rests on: its imports, its size, and the list in docs/trust.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

from mirage_formal.check.kernel.trusted import PARTS, TRUSTED, counts

REPOSITORY = Path(__file__).resolve().parents[2]
KERNEL = REPOSITORY / "mirage_formal" / "check" / "kernel"
ALLOWED = ("mirage_formal.ir.", "mirage_formal.smt.", "mirage_formal.errors", "mirage_formal.check.kernel.")


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
                assert path.name == "second.py", path
            elif top == "mirage_formal":
                assert f"{name}.".startswith(ALLOWED), f"{path} imports {name}"
            else:
                assert top in sys.stdlib_module_names, f"{path} imports {name}"


def test_no_trusted_file_imports_an_untrusted_one_of_the_kernel() -> None:
    trusted = {Path(name).stem for name in TRUSTED if "/kernel/" in name}
    prefix = "mirage_formal.check.kernel."
    for stem in trusted:
        inner = {n.removeprefix(prefix) for n in imports(KERNEL / f"{stem}.py") if n.startswith(prefix)}
        # replay hands what it compared to closing, and takes nothing back that it looks at.
        assert inner <= trusted | ({"closing"} if stem == "replay" else set()), stem


def test_replaying_loads_no_solver_and_no_library() -> None:
    script = "import sys, mirage_formal.check.kernel.replay\nprint(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert not {"numpy", "sympy", "z3", "cvc5", "msgspec"} & set(done.stdout.split())


def test_the_rules_stay_small() -> None:
    assert sum(counts()[name][0] for name in PARTS["rules"]) <= 800


def test_docs_count_the_lines_that_are_there() -> None:
    """Run ``python -m mirage_formal.check.kernel.trusted`` and copy its table when this fails."""
    text = (REPOSITORY / "docs" / "trust.md").read_text()
    stated = {name: int(lines) for name, lines in re.findall(r"^\| `([^`]+\.py)` \| (\d+) \|", text, re.MULTILINE)}
    assert stated == {name: lines for name, (lines, _) in counts().items()}


def test_every_rule_that_accepts_says_why() -> None:
    for name in ("algebra", "moves", "laws", "steps", "pieces", "elaborate", "terms", "replay"):
        assert "Sound:" in (KERNEL / f"{name}.py").read_text(), name
    laws = ast.parse((KERNEL / "laws.py").read_text())
    names = {"_sum", "_max", "_pmax", "_content"}
    checks = [n for n in laws.body if isinstance(n, ast.FunctionDef) and n.name in names]
    assert len(checks) == 4
    assert all("Sound:" in (ast.get_docstring(n) or "") for n in checks)
