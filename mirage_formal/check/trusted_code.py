"""Counts of the trusted code of each claim of ``check``, by imports: python -m mirage_formal.check.trusted_code.

A claim has an entry, the module that establishes it. Its trusted code is that module and all modules of this package
that it imports, directly or indirectly; imports for type checkers alone do not count. The package's own ``__init__``
files are left out, though they run too: they define names for users, and no check uses them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).resolve().parents[2]
_PACKAGE: Final = "mirage_formal"

#: Claims, and the module that establishes each.
CLAIMS: Final[Mapping[str, str]] = {
    "a proof shows that two graphs are equal": "mirage_formal.check.proof.replay",
    "equivalent, of a candidate's directory": "mirage_formal.check.minimal_check",
    "everything that `check` says of a candidate": "mirage_formal.check.candidate",
    "everything that `check` says of a run, without its kernels": "mirage_formal.check.run_check",
    "a kernel computes its µGraph": "mirage_formal.codegen.translation_validation.realization",
    "everything that `check` says": "mirage_formal.revalidate.check_command",
}
#: Modules with the rules of the proof kernel, which stay small.
RULES: Final = tuple(
    f"mirage_formal.check.proof.{name}" for name in ("ring", "index_substitution", "laws", "tensor_steps", "replay")
)


def transitive_imports(entry: str) -> tuple[str, ...]:
    """Return the modules of the package that a module imports, directly or indirectly, and itself, by name."""
    found: set[str] = set()
    left = [entry]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _imports(name)
    return tuple(sorted(found))


@cache
def count_lines(module: str) -> tuple[int, int]:
    """Return the lines of code and lines of docstrings of a module; blank lines and comments are neither."""
    text = _file(module).read_text(encoding="utf-8")
    filled = {i for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.lstrip().startswith("#")}
    docs: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docs.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return len(filled - docs), len(filled & docs)


def total_lines(names: tuple[str, ...]) -> tuple[int, int]:
    """Return the lines of code and of docstrings of several modules together."""
    each = [count_lines(name) for name in names]
    return sum(code for code, _ in each), sum(docs for _, docs in each)


def _file(module: str) -> Path:
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _imports(module: str) -> tuple[str, ...]:
    """Return the modules of the package in a module's imports."""
    found: list[str] = []
    for node in _runtime_nodes(ast.parse(_file(module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            own = [name for name in inside if name.startswith(f"{_PACKAGE}.") and _file(name).is_file()]
            found += own if len(own) == len(inside) else [node.module or "", *own]
    return tuple(name for name in dict.fromkeys(found) if name.startswith(f"{_PACKAGE}."))


def _runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the AST nodes of a module, except those for type checkers only."""
    yield node
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.If) and isinstance(inner.test, ast.Name) and inner.test.id == "TYPE_CHECKING":
            for other in inner.orelse:
                yield from _runtime_nodes(other)
        else:
            yield from _runtime_nodes(inner)


def trust_tables() -> str:
    """Return the tables of docs/trust.md."""
    lines = ["| claim | entry | modules | code | docstrings |", "|---|---|--:|--:|--:|"]
    for claim, entry in CLAIMS.items():
        names = transitive_imports(entry)
        code, docs = total_lines(names)
        lines.append(f"| {claim} | `{entry}` | {len(names)} | {code} | {docs} |")
    lines += ["", "| module | code | docstrings |", "|---|--:|--:|"]
    for name in transitive_imports(CLAIMS["equivalent, of a candidate's directory"]):
        lines.append(f"| `{name}` | {count_lines(name)[0]} | {count_lines(name)[1]} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(trust_tables())
