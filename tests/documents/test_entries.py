"""Everything public has its entry: names, operators, options, errors, reasons, file formats, extras, targets."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.api.request import Options
from mirage_formal.graph.ops import OpKind
from mirage_formal.records.schema import FILES, run_directory_schema_text
from mirage_formal.search import space
from mirage_formal.support import errors
from tests.documents.pages import anchors, fences
from tests.kit.paths import REPOSITORY

DOCS = REPOSITORY / "docs"


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def settings() -> dict[str, Any]:
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_public_name_is_in_the_api() -> None:
    entries = re.findall(
        r"^\.\. (?:autofunction|autoclass|autoexception|data):: (\w+)$", text("reference/api.md"), re.M
    )
    assert sorted(entries) == sorted(mf.__all__)


def test_every_option_is_described_where_the_api_shows_it() -> None:
    described = set(re.findall(r"^ {8}(\w+): ", Options.__doc__ or "", flags=re.M))
    assert set(Options.__annotations__) == described


def operators_page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("operators_page", REPOSITORY / "tools" / "site" / "operators_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_operator_is_on_the_page_that_the_table_prints() -> None:
    page = text("reference/operators.md")
    assert page == operators_page().page()
    assert [kind for kind in OpKind if f"| `{kind.value}` |" not in page] == []


def classes() -> list[type[BaseException]]:
    """Every class of mistakes, by the module that defines the public ones."""
    found = [value for value in vars(errors).values() if isinstance(value, type)]
    return [value for value in found if issubclass(value, errors.MirageError)]


@pytest.mark.parametrize("kind", [*classes(), mf.IgnoredOptionWarning], ids=lambda kind: kind.__name__)
def test_every_error_has_a_section_with_the_cure_and_an_example_that_is_run(kind: type[BaseException]) -> None:
    page = text("errors.md")
    section = re.search(rf"^### {kind.__name__}\n(.*?)(?=^### |\Z)", page, flags=re.DOTALL | re.MULTILINE)
    assert section is not None
    printed = [fence.code for fence in fences(page) if fence.kind == "output"]
    caught = [fence.code for fence in fences(text("start/nothing-found.md")) if fence.kind == "run"]
    # The base has none of its own; workers that cannot start are not to be had by a call.
    without = kind in (errors.MirageError, errors.WorkerError, mf.IgnoredOptionWarning)
    shown = any(code.startswith(f"{kind.__name__}: ") for code in printed)
    assert without or shown or any(f"except mf.{kind.__name__}" in code for code in caught)
    assert "**Cure**" in section[1] or "start/nothing-found.md" in section[1] or kind is errors.MirageError


def test_every_reason_for_finding_nothing_has_its_way_out() -> None:
    tree = ast.parse((REPOSITORY / "mirage_formal" / "api" / "no_result_diagnosis.py").read_text(encoding="utf-8"))
    causes = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Reason"
        and isinstance(node.args[0], ast.Constant)
    }
    assert len(causes) >= 9
    assert causes <= anchors(text("start/nothing-found.md"))


def test_every_file_format_has_its_row_and_its_schema() -> None:
    page = text("reference/formats.md")
    assert [name for name in FILES if f"| `{name}` |" not in page] == []
    assert [name for name in FILES if f"#/$defs/{name}`" not in page] == []
    assert run_directory_schema_text() == text("schemas/run-directory.schema.json")
    assert {path.name for path in (DOCS / "schemas").iterdir()} == set(re.findall(r"schemas/([\w.-]+\.json)", page))


def test_every_field_of_a_search_space_is_described() -> None:
    page = text("howto/space.md")
    kinds = [value for value in vars(space).values() if hasattr(value, "__struct_fields__")]
    fields = {name for kind in kinds for name in kind.__struct_fields__}
    assert {"keep", "shared_bytes", "grid_divisors"} <= fields
    rows = " ".join(line for line in page.splitlines() if line.startswith("| "))
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", rows))))
    assert fields - named == set()


def test_every_extra_is_explained() -> None:
    page = text("start/install.md")
    extras = settings()["project"]["optional-dependencies"]
    assert [name for name in extras if f"`{name}`" not in page] == []


def test_groups_are_the_extras() -> None:
    read = settings()
    extras, groups = read["project"]["optional-dependencies"], read["dependency-groups"]
    for name in ("test", "docs"):
        assert groups[name] == extras[name]
    assert [one["include-group"] for one in groups["dev"] if isinstance(one, dict)] == ["test", "docs"]


def test_the_lock_is_of_these_requirements_and_names_no_place_but_the_index() -> None:
    """Versions are compared by ``uv lock --check``, which needs the index; this sees that it was not forgotten."""
    lock = tomllib.loads((REPOSITORY / "uv.lock").read_text(encoding="utf-8"))
    [own] = [package for package in lock["package"] if package["name"] == "mirage-formal"]
    asked = settings()["project"]
    wanted = [*asked["dependencies"], *(one for extra in asked["optional-dependencies"].values() for one in extra)]
    names = sorted(re.split(r"[\[<>=!~ ]", one)[0].lower() for one in wanted)
    assert sorted(one["name"] for one in own["metadata"]["requires-dist"]) == names
    sources = {str(package["source"]) for package in lock["package"]}
    assert sources == {"{'registry': 'https://pypi.org/simple'}", "{'editable': '.'}"}
    hosts = set(re.findall(r"\w+://([^/\"]+)", (REPOSITORY / "uv.lock").read_text(encoding="utf-8")))
    assert hosts == {"pypi.org", "files.pythonhosted.org"}


def test_the_version_is_the_same_everywhere() -> None:
    citation = (REPOSITORY / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {mf.__version__}\n" in citation
    assert settings()["project"]["version"] == mf.__version__
    assert mf.__version__ in (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_ten_questions_lead_to_pages_of_the_site() -> None:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Ten questions")[2]
    rows = [line for line in page.splitlines() if line.startswith("| ") and "?" in line.split("|")[1]]
    assert len(rows) == 10
    listed = text("index.md").splitlines()
    for row in rows:
        [*_, target] = re.findall(r"\]\(docs/([\w/-]+)\.md", row)
        assert target in listed, row


def test_workflows_run_what_a_checkout_runs() -> None:
    """Commands of the workflows are targets of the Makefile, .ci/run and uv, so nothing is tested there alone."""
    places = sorted(Path(REPOSITORY, ".github", "workflows").glob("*.yml"))
    ran = {line.partition("run: ")[2] for path in places for line in path.read_text().splitlines() if "run: " in line}
    made = {command.split()[1] for command in ran if command.startswith("make ")}
    assert made <= set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), flags=re.M))
    assert ".ci/run" in ran
