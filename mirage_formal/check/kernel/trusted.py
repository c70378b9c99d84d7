"""Counts the code lines of what has to be trusted: python -m mirage_formal.check.kernel.trusted."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

_KERNEL = "mirage_formal/check/kernel"
#: Trusted files by part, as docs/trust.md explains them.
PARTS: Mapping[str, tuple[str, ...]] = {
    "rules": tuple(f"{_KERNEL}/{name}.py" for name in ("algebra", "moves", "laws", "steps", "replay")),
    "proof files": (f"{_KERNEL}/reader.py",),
    "meaning of graphs": tuple(f"{_KERNEL}/{name}.py" for name in ("terms", "pieces", "elaborate")),
    "graphs": tuple(f"mirage_formal/ir/{name}.py" for name in ("types", "ops", "graph", "rules", "check")),
}
TRUSTED = tuple(name for names in PARTS.values() for name in names)


def counts() -> Mapping[str, tuple[int, int]]:
    """For each trusted file: lines of code, and lines of docstrings; blank lines and comments are neither."""
    return {name: _count(Path(__file__).resolve().parents[3] / name) for name in TRUSTED}


def _count(path: Path) -> tuple[int, int]:
    text = path.read_text(encoding="utf-8")
    filled = {i for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docs.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(filled - docs), len(filled & docs)


def main() -> None:
    """Prints the table of docs/trust.md."""
    found = counts()
    for part, names in PARTS.items():
        print(f"| **{part}** | **{sum(found[n][0] for n in names)}** | **{sum(found[n][1] for n in names)}** |")
        for name in names:
            print(f"| `{name}` | {found[name][0]} | {found[name][1]} |")
    print(f"| **all** | **{sum(a for a, _ in found.values())}** | **{sum(b for _, b in found.values())}** |")


if __name__ == "__main__":
    main()
