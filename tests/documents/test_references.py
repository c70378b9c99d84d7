"""What the documents name exists: files, directories, modules, functions, commands; and the pictures of the design."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.cli.test_help import COMMANDS
from tests.documents.pages import links, not_run
from tests.kit.paths import REPOSITORY

PACKAGE: Final = REPOSITORY / "mirage_formal"
DOCUMENTS: Final = tuple(
    sorted(
        path
        for pattern in ("*.md", "docs/**/*.md", "axioms/*.md", "benchmarks/*.md", "mirage_formal/**/*.md")
        for path in REPOSITORY.glob(pattern)
    )
)
#: Endings of files that are kept in the repository; a word that ends so is the name of a file.
KEPT: Final = "py|md|toml|smt2|cuh|cpp|h|svg|sha256"
#: Where commands write, and directories of a wheel: what lies below is in no checkout.
WRITTEN: Final = (
    "runs/",
    "candidates/",
    "parts/",
    "proof/",
    "kernels/",
    "kernels/001-",
    "kernels/NNN-",
    "_data/",
    "...",
)
#: Files that commands write and that have the ending of a kept one, or lie in a directory of a kept one's name.
WRITTEN_FILES: Final = re.compile(r"results\.md|kernels/\w+\.json")
#: Names with a slash that are no paths: streams of random words (docs/fingerprint.md).
STREAMS: Final = frozenset({"opaque/gelu"})
#: Records name their kind like this; they are no modules.
SCHEMAS: Final = frozenset({"mirage_formal.fingerprint.1", "mirage_formal.launch"})
#: First parts of dotted names that are other packages'.
LIBRARIES: Final = frozenset({"aten", "galois", "np", "numpy", "torch"})
#: A word of code that is the name of a file.
FILE: Final = re.compile(rf".*\.(?:{KEPT}|json|jsonl|cu|cubin|gz)")


def spans(text: str) -> list[str]:
    """Code within a paragraph; it may go on in the next line."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(span.split()) for span in re.findall(r"`((?:[^`\n]|\n(?!\n))+)`", prose)]


def blocks(text: str) -> list[tuple[str, str]]:
    """Blocks of code: their language, or nothing, and what they hold."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


@cache
def kept_names() -> frozenset[str]:
    tops = ("axioms", "benchmarks", "docs", "examples", "gpu", "mirage_formal", "search", "tests")
    found = {path.name for top in tops for path in (REPOSITORY / top).rglob("*.*")}
    return frozenset(found | {path.name for path in REPOSITORY.iterdir()})


def named_files(text: str) -> Iterator[str]:
    """Paths with a kept ending, wherever they stand; names of such files in code; names of documents."""
    for found in re.finditer(rf"(?<![\w./<>~$-])((?:[\w.*-]+/)+[\w.*-]+\.(?:{KEPT}|json))\b(?![\w/])", text):
        yield found[1]
    for span in spans(text):
        if re.fullmatch(rf"[a-z_][\w-]*\.(?:{KEPT})", span):
            yield span
    for found in re.finditer(r"(?<![\w./*{-])([\w-]+\.md)\b", text):
        yield found[1]


def named_directories(text: str) -> Iterator[str]:
    for span in spans(text):
        if re.fullmatch(r"(?:[a-z_]\w*/)+(?:[a-z_]\w*)?", span):
            yield span


def is_there(name: str, document: Path) -> bool:
    if name.startswith(WRITTEN) or WRITTEN_FILES.fullmatch(name) or name in STREAMS:
        return True
    if "/" not in name:
        return name in kept_names()
    return any(
        any(base.glob(name.rstrip("/"))) or (base / f"{name}.py").is_file()
        for base in (REPOSITORY, PACKAGE, document.parent)
    )


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_file_and_directory_exists(document: Path) -> None:
    text = not_run(document.read_text(encoding="utf-8"))
    names = dict.fromkeys([*named_files(text), *named_directories(text)])
    assert [name for name in names if not is_there(name, document)] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_link_leads_to_a_file(document: Path) -> None:
    found = [link.partition("#")[0] for link in links(document.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in found if not (document.parent / link).exists()] == []


# --- modules and functions -------------------------------------------------------------------------------------------


def module_file(name: str) -> Path | None:
    """The file of a module or package, by its dotted name."""
    path = REPOSITORY.joinpath(*name.split("."))
    if path.with_suffix(".py").is_file():
        return path.with_suffix(".py")
    return path / "__init__.py" if (path / "__init__.py").is_file() else None


@cache
def defined(path: Path) -> dict[str, ast.AST]:
    """What the top level of a module defines or imports."""
    return members(ast.parse(path.read_text(encoding="utf-8")).body)


def members(body: list[ast.stmt]) -> dict[str, ast.AST]:
    found: dict[str, ast.AST] = {}
    for node in body:
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                found[node.name] = node
            case ast.Assign():
                found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
            case ast.Import() | ast.ImportFrom():
                found |= {(alias.asname or alias.name): node for alias in node.names}
            case ast.If():
                found |= members(node.body)
            case _:
                pass
    return found


def resolves(name: str) -> bool:
    """Whether a dotted name is a module, or something that one defines."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = module_file(".".join(parts[:count]))
        if path is None:
            continue
        inside = defined(path)
        for part in parts[count:]:
            node = inside.get(part)
            if node is None:
                return False
            inside = members(node.body) if isinstance(node, ast.ClassDef) else {}
        return True
    return False


def named_modules(text: str) -> Iterator[str]:
    """Names that begin with the package, wherever they stand, and every dotted name in code but other libraries'."""
    for found in re.finditer(r"(?<![\w./-])(mirage_formal(?:\.[a-zA-Z0-9_]+)+)", text):
        if found[1] not in SCHEMAS and not found[1].rsplit(".", 1)[1].isupper():
            yield found[1]
    names = [span.removesuffix("()") for span in spans(text)]
    names += [
        word for language, code in blocks(text) if not language for word in re.findall(r"(?<![\w./-])[\w.]+\w", code)
    ]
    for name in names:
        top = name.split(".")[0]
        if re.fullmatch(r"[a-z_]\w*(?:\.[A-Za-z_]\w*)+", name) and top not in LIBRARIES and not FILE.fullmatch(name):
            yield name if top in ("mirage_formal", "benchmarks", "tests") else f"mirage_formal.{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_module_and_function_exists(document: Path) -> None:
    names = dict.fromkeys(named_modules(not_run(document.read_text(encoding="utf-8"))))
    assert [name for name in names if not resolves(name)] == []


# --- commands --------------------------------------------------------------------------------------------------------


def is_run(name: str) -> bool:
    """Whether ``python -m name`` runs something."""
    path = REPOSITORY.joinpath(*name.split("."))
    if (path / "__main__.py").is_file():
        return True
    module = path.with_suffix(".py")
    return module.is_file() and 'if __name__ == "__main__":' in module.read_text(encoding="utf-8")


def targets() -> set[str]:
    """The targets of the Makefile."""
    return set(re.findall(r"^([a-z][a-z-]*):", (REPOSITORY / "Makefile").read_text(), flags=re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPOSITORY).as_posix())
def test_every_command_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    lines = [*spans(text), *(line for _, code in blocks(text) for line in code.splitlines())]
    modules = re.findall(r"python3? -m ([a-z_][\w.]*\w)", text)
    own = [name for name in modules if name.split(".")[0] in ("mirage_formal", "benchmarks", "tests")]
    own = [name for name in own if not name.rsplit(".", 1)[-1].isupper()]
    assert [name for name in own if not is_run(name)] == []
    made = [found[1] for line in lines if (found := re.match(r"make ([a-z-]+)\b", line))]
    assert [name for name in made if name not in targets()] == []
    called = [found[1] for line in lines if (found := re.match(r"mirage-formal ([a-z]+)\b", line))]
    assert [name for name in called if name not in {command[0] for command in COMMANDS}] == []


def test_the_checks_above_see_what_is_wrong() -> None:
    text = (
        "`ir/types`, docs/none.md, `algebra.py`, `mirage_formal.verify.prove`, `optimize.make_plan`, `run.driver.gone`"
    )
    document = REPOSITORY / "README.md"
    wrong = [name for name in (*named_files(text), *named_directories(text)) if not is_there(name, document)]
    assert set(wrong) == {"ir/types", "docs/none.md", "algebra.py"}
    assert [name for name in dict.fromkeys(named_modules(text)) if not resolves(name)] == [
        "mirage_formal.verify.prove",
        "mirage_formal.optimize.make_plan",
        "mirage_formal.run.driver.gone",
    ]
    assert not is_run("mirage_formal.graph")
    assert resolves("mirage_formal.device.launch.Optimized.prepare")


# --- docs/design.md --------------------------------------------------------------------------------------------------


def section(title: str) -> str:
    """The text of a section of the design."""
    text = (REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1]


def test_the_picture_of_the_layers_is_the_contract() -> None:
    [(_, picture)] = blocks(section("Layers"))
    drawn = [{name.strip() for name in line.split("  ")[0].split("|")} for line in picture.splitlines()]
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["importlinter"]
    [layers] = [contract["layers"] for contract in settings["contracts"] if contract["type"] == "layers"]
    assert drawn == [{name.strip().removeprefix("mirage_formal.") for name in layer.split("|")} for layer in layers]


def test_answers_name_files_and_what_is_defined_in_them() -> None:
    """Each row of the table names files, and behind each file names that it defines."""
    rows = [line.strip("|").split("|") for line in section("Which file answers which question").splitlines()]
    answers = [cells[1] for cells in rows if len(cells) == 2 and "`" in cells[1]]
    assert len(answers) >= 16
    for answer in answers:
        names: set[str] | None = None
        for span in re.findall(r"`([^`]+)`", answer):
            if "/" in span:
                path = REPOSITORY / span
                assert path.exists(), answer
                tree = ast.walk(ast.parse(path.read_text())) if path.suffix == ".py" else iter(())
                names = {name for node in tree for name in bound(node)}
            else:
                assert names is not None, answer
                assert span in names, answer
        assert names is not None, answer


def bound(node: ast.AST) -> Iterator[str]:
    """The names that a definition or an assignment binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.Assign(targets=found):
            yield from (target.id for target in found if isinstance(target, ast.Name))
        case _:
            pass
