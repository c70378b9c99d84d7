"""What is printed of the commands themselves: help, the reference, completion, schemas."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from mirage_formal.cli import app as cli
from mirage_formal.cli import utilities
from mirage_formal.cli.command_reference import document
from mirage_formal.records.answer import answer_schema_text
from tests.kit.paths import REPOSITORY
from tests.kit.processes import leaves

GOLDEN = REPOSITORY / "tests" / "golden" / "help"
GROUPS = ("", *sorted({name.rpartition(" ")[0] for name in leaves()} - {""}))
NAMES = tuple(sorted({*leaves(), *GROUPS}))


def golden(name: str) -> Path:
    """The file of a command's help; folders are small."""
    if name in GROUPS:
        return GOLDEN / name.replace(" ", "/") / "command.txt"
    if " " in name:
        return GOLDEN / f"{name.replace(' ', '/')}.txt"
    return GOLDEN / ("a-m" if name < "n" else "n-z") / f"{name}.txt"


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_every_command_is_kept(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """python -m pytest tests/cli/test_command_reference.py --update-golden writes them anew."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert utilities.invoke_command(cli.app, [*name.split(), "--help"], program="mirage-formal") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    path = golden(name)
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), "--update-golden writes it"
    assert path.read_text(encoding="utf-8") == text


def test_there_is_no_help_of_a_command_that_is_gone() -> None:
    assert {path for path in GOLDEN.rglob("*.txt")} == {golden(name) for name in NAMES}


def test_the_reference_is_what_the_commands_say() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    assert text[text.index("## Commands") :] == document(), "python -m mirage_formal.cli.command_reference prints it"


def test_every_exit_code_and_every_command_is_in_the_document() -> None:
    text = (REPOSITORY / "docs" / "cli.md").read_text(encoding="utf-8")
    table = text[text.index("## Exit codes") : text.index("## Mistakes")]
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)]
    assert codes == [0, 1, 2, 70, 129, 130, 141, 143]
    answers = text[text.index("## Answers for programs") : text.index("## Progress")]
    assert {name.removeprefix("tools ") for name in leaves() if "--json" in _options(name)} <= set(_listed(answers))


def _options(name: str) -> list[str]:
    return [option for parameter in leaves()[name].params for option in parameter.opts]


def _listed(table: str) -> list[str]:
    """Commands in the first column, of which a group may name several."""
    found = []
    for cell in re.findall(r"^\| ([a-z][\w ,]*?) \|", table, flags=re.MULTILINE):
        first, *others = cell.split(", ")
        group = first.rpartition(" ")[0]
        found += [first, *(one if " " in one or f"tools {one}" in leaves() else f"{group} {one}" for one in others)]
    return found


def test_every_command_that_answers_does_so_for_programs_too() -> None:
    assert [name for name in leaves() if "--json" not in _options(name)] == []


@pytest.mark.parametrize(("shell", "words"), [("bash", "complete "), ("zsh", "compdef "), ("fish", "complete ")])
def test_completion_can_be_installed(shell: str, words: str) -> None:
    """The scripts are those that --install-completion writes; they ask the command, which answers."""
    place = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    code = "import sys; sys.argv[0] = 'mirage-formal'; from mirage_formal.cli.app import main; main()"
    environment = {**place, "_MIRAGE_FORMAL_COMPLETE": f"source_{shell}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert words in done.stdout, done.stderr
    assert "mirage-formal" in done.stdout
    assert f"_MIRAGE_FORMAL_COMPLETE=complete_{shell}" in done.stdout


def test_completion_offers_commands_options_and_their_words() -> None:
    from typer.testing import CliRunner

    def offered(line: str) -> str:
        environment = {
            "_MIRAGE_FORMAL_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        return CliRunner().invoke(cli.app, [], prog_name="mirage-formal", env=environment).output

    assert {"check", "tools"} <= set(offered("mirage-formal ").split())
    assert {"explain", "doctor"} <= set(offered("mirage-formal tools ").split())
    assert "--no-recompile" in offered("mirage-formal check --")
    assert set(offered("mirage-formal search x.py --progress ").split()) == {"auto", "bars", "json", "none"}


def test_the_schema_of_answers_is_the_published_one() -> None:
    path = REPOSITORY / "docs" / "schemas" / "command-line.schema.json"
    assert path.read_text(encoding="utf-8") == answer_schema_text()


def test_a_group_and_a_command_are_registered_by_a_line_each() -> None:
    """So that commands that are added side by side are merged without a thought."""
    assert isinstance(cli.app, typer.Typer)
    text = (REPOSITORY / "mirage_formal" / "cli" / "app.py").read_text(encoding="utf-8")
    lines = re.findall(r"^@?(?:app|tools)\.(?:command|add_typer)\(.*\)$", text, re.M)
    tops = {tuple(name.split(" ")[: 1 + name.startswith("tools ")]) for name in leaves()} | {("tools",)}
    assert len(lines) == len(tops)


@pytest.mark.parametrize("line", ["schema", "store list", "docs cli --path"])
def test_commands_are_called_by_the_names_that_they_had(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split()
    assert utilities.invoke_command(cli.app, ["tools", *words, "--json"]) == 0
    now = capsys.readouterr()
    assert now.err == ""
    assert utilities.invoke_command(cli.app, [*words, "--json"]) == 0
    before = capsys.readouterr()
    assert before.out == now.out
    assert before.err == f"note: mirage-formal {words[0]} is now mirage-formal tools {words[0]}\n"


def test_mistakes_of_commands_called_by_the_names_that_they_had(capsys: pytest.CaptureFixture[str]) -> None:
    assert utilities.invoke_command(cli.app, ["gpu", "run", "--nosuch", "--json"]) == 2
    assert '"command": "gpu run"' in capsys.readouterr().out
