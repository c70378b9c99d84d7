"""The layer rule, what importing costs, and limits on files."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit.paths import REPOSITORY

PACKAGE = REPOSITORY / "mirage_formal"
TESTS = REPOSITORY / "tests"
HEAVY = {
    "z3",
    "cvc5",
    "galois",
    "numba",
    "numpy",
    "sympy",
    "torch",
    "triton",
    "cupy",
    "typer",
    "rich",
    "distributed",
    "dask",
    "matplotlib",
}


def sources(root: Path = PACKAGE) -> list[Path]:
    return sorted(root.rglob("*.py"))


class Found(NamedTuple):
    """What tests look for in a file, at any depth: a file is parsed once."""

    imports: list[ast.Import | ast.ImportFrom]
    calls: list[ast.Call]
    functions: list[tuple[str, ast.arguments]]


@cache
def found(path: Path) -> Found:
    """Imports, calls of ``import_module``, names and parameters of functions."""
    imports, calls, functions = Found([], [], [])
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import() | ast.ImportFrom():
                imports.append(node)
            case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module")):
                calls.append(node)
            case ast.FunctionDef():
                functions.append((node.name, node.args))
    return Found(imports, calls, functions)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at any depth."""
    for node in found(path).imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@cache
def modules() -> dict[str, Path]:
    """The file of each module of the package, by its dotted name."""
    dotted = (".".join(path.relative_to(REPOSITORY).with_suffix("").parts) for path in sources())
    return {name.removesuffix(".__init__"): path for name, path in zip(dotted, sources(), strict=True)}


def imported_modules(path: Path) -> set[str]:
    """Modules of the package, but for the package itself, that a file imports, at any depth."""
    names = set()
    for node in found(path).imports:
        prefix = [f"{node.module}."] if isinstance(node, ast.ImportFrom) else [""]
        names |= {prefix[0] + alias.name for alias in node.names} | {prefix[0].removesuffix(".")}
    return (names & modules().keys()) - {"mirage_formal"}


def loaded_by(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_is_light() -> None:
    loaded = loaded_by("import mirage_formal")
    assert "mirage_formal" in loaded
    assert loaded & HEAVY == set()


def test_loading_a_program_is_light() -> None:
    statement = "import runpy; runpy.run_path('examples/attn.py', run_name='program')"
    assert loaded_by(statement) & HEAVY == set()


@pytest.mark.parametrize("module", ["mirage_formal.cli.app", "mirage_formal.api.request", "mirage_formal.check"])
def test_solvers_are_loaded_when_first_asked(module: str) -> None:
    assert loaded_by(f"import {module}") & {"z3", "cvc5", "galois", "numba", "torch", "cupy"} == set()


def test_the_layer_rule() -> None:
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


def test_the_checker_imports_only_what_it_may() -> None:
    folders = ("check", "graph", "logic", "records")
    base = {f"support.{name}" for name in ("guard", "errors", "files", "limits", "strict_json", "terminal")} | {
        "support"
    }
    for path in sources(PACKAGE / "check"):
        own = {name.removeprefix("mirage_formal.") for name in imported_modules(path)}
        if path.name == "__main__.py" and path.parent.name == "check":
            # The command, which also derives kernels again; no other module imports it.
            assert own == {"support.guard", "revalidate.check_command"}
        else:
            assert "check.__main__" not in own
            assert {name for name in own - base if name.split(".")[0] not in folders} == set(), path
        outside = {name.split(".")[0] for name in imports(path)} - {"mirage_formal"}
        judges = {"sympy", "galois"} if path.name == "prime_field.py" else {"sympy"}
        assert outside <= sys.stdlib_module_names | {"numpy", "msgspec"} | judges, path


def test_no_device_package_is_imported() -> None:
    for path in sources():
        tops = {name.split(".")[0] for name in imports(path)}
        bridge = {"torch"} if path.is_relative_to(PACKAGE / "torch") else set()
        assert tops & {"torch", "cupy", "triton", "cuda"} <= bridge, path


def test_the_bridge_to_torch_loads_it_with_its_first_call() -> None:
    for module in ("mirage_formal.torch", "mirage_formal.torch.import_result", "mirage_formal.torch.op_table_docs"):
        assert loaded_by(f"import {module}") & {"torch", "numpy"} == set()


def test_public_things_have_docstrings() -> None:
    missing = []
    for path in sources():
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and ast.get_docstring(node) is None:  # type: ignore[arg-type]
                missing.append(f"{path.relative_to(REPOSITORY)}: {node.name}")  # type: ignore[attr-defined]
    assert missing == []


def test_data_directories_hold_no_python() -> None:
    assert [path for name in ("axioms", "search") for path in sources(REPOSITORY / name)] == []


def test_folders_are_small() -> None:
    """A folder is read at a glance: at most 14 files of its own."""
    for root in (PACKAGE, REPOSITORY / "tests"):
        for folder in [root, *(path for path in root.rglob("*") if path.is_dir() and path.name != "__pycache__")]:
            files = [path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")]
            assert len(files) <= 14, folder


def test_the_tests_of_a_folder_begin_with_examples() -> None:
    """``test_examples.py`` is an introduction: three to six short tests with the folder's central types."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} & {path.name for path in TESTS.iterdir()}
    assert len(folders) > 15
    for folder in sorted(folders - {"emulate", "reproduce", "revalidate"}):  # commands, which tests of `cli` introduce
        path = TESTS / folder / "test_examples.py"
        assert path.is_file(), folder
        tests = [name for name, _ in found(path).functions if name.startswith("test_")]
        assert len(tests) >= 2, folder
        assert (ast.get_docstring(ast.parse(path.read_text())) or "").strip(), folder


def folders_that_a_folder_imports(folder: Path) -> set[str]:
    """Top-level folders that the files of a folder import; of its own top-level folder, those at its depth or above."""
    own = folder.relative_to(PACKAGE).parts
    names = set()
    for module in set[str]().union(*(imported_modules(path) for path in sources(folder) if path.stem != "__main__")):
        path = modules()[module].relative_to(PACKAGE)
        parts = path.parts[:-1] or (path.stem,)
        if parts[: len(own)] != own:
            names.add(".".join(parts[: len(own)]) if parts[0] == own[0] else parts[0])
    return names


def test_each_folder_says_what_it_takes_returns_and_imports() -> None:
    for path in sources():
        folder = path.parent
        if path.name == "__init__.py" and folder != PACKAGE:
            text = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
            said = re.search(r"Takes .+?\. Returns .+?\. Imports ([\w., ]+?)\.(?: |$)", text)
            assert said is not None, (
                f"{folder}: its docstring says in three sentences what it takes, returns and imports"
            )
            names = set(re.split(r", | and ", said[1])) - {"nothing of this package"}
            assert names == folders_that_a_folder_imports(folder), folder


def test_own_modules_are_imported_by_statements() -> None:
    """A string that names a module is seen by no linter and no type checker."""
    for path in sources():
        for node in found(path).calls:
            (name,) = node.args
            literal = isinstance(name, ast.Constant) and str(name.value).startswith("mirage_formal")
            assert not literal, f"{path}:{node.lineno}"


def test_no_import_circles() -> None:
    """Also not through imports inside functions, or for type checkers alone."""
    left = {module: imported_modules(path) - {module} for module, path in modules().items()}
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    assert left == {}


def test_functions_have_few_parameters() -> None:
    """More than six are a value that has no name yet; commands have as many as options."""
    wide = []
    for path in sources():
        for name, given in found(path).functions:
            names = [
                a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg not in ("self", "cls")
            ]
            wide += [f"{path.stem}.{name}"] * (len(names) > 6 and not name.endswith("_command"))
    assert len(wide) <= 1, wide


def test_code_generation_knows_no_workload() -> None:
    """Its rules are about µGraphs: no example and no model is named in what plans, lowers, tunes and runs kernels."""
    names = {path.stem for path in (REPOSITORY / "examples").rglob("*.py")} | {"attention", "llama", "transformer"}
    wanted = sorted(names - {"decode", "transposition"})  # those are words of ours as well
    words = re.compile(rf"\b({'|'.join(map(re.escape, wanted))})\b", re.IGNORECASE)
    folders = [PACKAGE / "codegen", PACKAGE / "device", PACKAGE / "autotune", REPOSITORY / "gpu" / "include"]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".cuh", ".h")]
    assert len(files) > 60
    found = [f"{path.name}: {hit[0]}" for path in files for hit in words.finditer(path.read_text())]
    assert found == []
