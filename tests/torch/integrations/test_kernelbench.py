"""KernelBench's problems: which are imported, what is written for them, and that wrong modules are found out."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")

from mirage_formal.support.errors import MirageError, ProgramError, RunError  # noqa: E402
from mirage_formal.torch import from_torch  # noqa: E402
from mirage_formal.torch.integrations.kernelbench.markdown_table import format_row, markdown, stage_counts  # noqa: E402
from mirage_formal.torch.integrations.kernelbench.outcome import OutcomeTable, ProblemOutcome, SolveRequest, Trials  # noqa: E402
from mirage_formal.torch.integrations.kernelbench.problem_runner import RunOptions, run_problems  # noqa: E402
from mirage_formal.torch.integrations.kernelbench.problems import commit_of, find_problems  # noqa: E402
from mirage_formal.torch.integrations.kernelbench.sizes import halve_numbers  # noqa: E402
from mirage_formal.torch.integrations.kernelbench.solve import solve_problem  # noqa: E402
from mirage_formal.torch.integrations.kernelbench.trials import compare_modules  # noqa: E402
from mirage_formal.torch.integrations.operator_loading import operator_at, result_at  # noqa: E402
from tests.kit.kernelbench import LEVELS, Problem  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:no GPU with CuPy"),
    pytest.mark.filterwarnings("ignore:input's size at dim=1 does not match num_features"),
]
#: Problems of each level that are imported whole, at least; the issue of the bridges asks for them.
WHOLE = {1: 45, 2: 30, 3: 8}


def names_of(problem: Problem) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(problem.text(), problem.title, "exec"), names)
    return names


def on_meta(problem: Problem) -> Any:
    """The import at the problem's own sizes, which need no memory on the meta device."""
    names = names_of(problem)
    with torch.device("meta"):
        return from_torch(names["Model"](*names["get_init_inputs"]()), tuple(names["get_inputs"]()))


@pytest.mark.parametrize("level", LEVELS)
def test_every_problem_is_imported_whole_or_names_the_operator_that_is_not(level: int) -> None:
    whole = 0
    for problem in LEVELS[level]:
        imported = on_meta(problem)
        left = {item.operator: item.reason for item in imported.left}
        assert (imported.graph is None) == bool(problem.refused), (problem.title, left)
        assert not problem.refused or left[problem.refused], problem.title
        whole += imported.graph is not None
    assert whole >= WHOLE[level]


def job(file: Path, place: Path, **changed: Any) -> SolveRequest:
    fields: dict[str, Any] = {
        "problem": file.stem,
        "file": str(file),
        "place": str(place / "evidence"),
        "written": str(place / "new.py"),
        "answer": str(place / "answer.json"),
        "largest": 16,
        "elements": 1 << 20,
        "trials": 3,
        "search_s": 60.0,
        "target": "h200",
        "cache": True,
    }
    return SolveRequest(**(fields | changed))


def solved(place: Path, problem: Problem | str, **changed: Any) -> ProblemOutcome:
    file = place / "problem.py"
    file.write_text(problem if isinstance(problem, str) else problem.text(), encoding="utf-8")
    return solve_problem(job(file, place, **changed))


def chosen(title: str) -> Problem:
    return next(one for problems in LEVELS.values() for one in problems if one.title == title)


TRIANGLE = Problem("Triangle", "x: n n", "torch.relu(x.tril())", "n=64")


@pytest.mark.parametrize(
    "title",
    [
        "Triangle",  # a constant
        "Gemm_Scale_BatchNorm",  # buffers that are written
        "Pointwise_convolution",
    ],
)
def test_a_problem_has_a_proved_candidate_and_a_correct_file(title: str, tmp_path: Path) -> None:
    found = solved(tmp_path, TRIANGLE if title == "Triangle" else chosen(title))
    assert found.error == ""
    assert found.imported == "whole"
    assert found.proved
    assert found.correct.answer == "passed"
    assert found.correct.trials == 3
    text = (tmp_path / "new.py").read_text()
    assert "class ModelNew(Model)" in text
    assert f"operator_at({found.regions[0].evidence!r})" in text
    assert "torch.ops.mirage_formal.c" in text
    assert all(f"{was} -> {now}" in text for was, now in found.sizes.values())


PARTLY = """
    import torch

    batch, width = 4, 8
    scale: int = 512 * 2

    class Model(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.linear = torch.nn.Linear(width, scale)

        def forward(self, x, times):
            y = torch.tanh(self.linear(x)) + 1
            return {"sums": (torch.cumsum(y, 1).exp() * 0.5 + y, times), "y": [y]}

    def get_inputs():
        return [torch.rand(batch, width), 3]

    def get_init_inputs():
        return [width]
"""


def test_what_stays_with_torch_is_named_with_its_line_and_computed(tmp_path: Path) -> None:
    found = solved(tmp_path, textwrap.dedent(PARTLY))
    assert found.error == ""
    assert found.imported == "part"
    assert [(item.operator, item.where) for item in found.left] == [("aten.cumsum.default", "line 14")]
    assert found.sizes == {"scale": (1024, 16)}
    assert found.correct.answer == "passed"
    assert len(found.regions) == 2


def test_inputs_of_a_distribution_which_cannot_be_drawn_without_memory(tmp_path: Path) -> None:
    inputs = "x = torch.distributions.Pareto(0.01, 1.5).sample((n, n)); y = torch.randint(0, 2, (n,)).float() * 2 - 1"
    found = solved(tmp_path, Problem("Hinge", inputs, "torch.mean(torch.clamp(1 - x * y, min=0))", "n=8192"))
    assert found.error == ""
    assert (found.imported, found.sizes, found.elements) == ("whole", {"n": (8192, 16)}, 272)
    assert found.correct.answer == "passed"


def test_a_problem_that_is_too_large_is_searched_and_not_compared(tmp_path: Path) -> None:
    found = solved(tmp_path, chosen("ReLU"), elements=100)
    assert found.proved
    assert found.correct == Trials(answer="not run", reason="256 elements are more than --elements 100")
    assert found.written


SIZES = """
a = 8192
b = 2 * 4096
c, d = 7, 9
e = (33, 1 << 3)
f: int = 100
g = -500
h = True
i = [3, 1000]
j = 0.5
name = "größe"; k = 4096
def get():
    l = 5000
"""


def test_numbers_become_smaller_together() -> None:
    text, changed = halve_numbers(SIZES, 64)
    assert changed == {
        "a": (8192, 64),
        "b": (8192, 64),
        "e[0]": (33, 16),
        "f": (100, 25),
        "i[1]": (1000, 31),
        "k": (4096, 32),
    }
    names: dict[str, Any] = {}
    exec(text, names)
    assert {name: names[name] for name in "abcdefghijk"} == {
        **{"a": 64, "b": 64, "c": 7, "d": 9, "e": (16, 8), "f": 25},
        **{"g": -500, "h": True, "i": [3, 31], "j": 0.5, "k": 32},
    }
    assert text.count("\n") == SIZES.count("\n")
    assert halve_numbers(SIZES, 10**6) == (SIZES, {})


def test_sizes_that_do_not_fit_together_any_more_are_left_alone(tmp_path: Path) -> None:
    text = chosen("Gemm_Add_ReLU").text() + "\nassert out_features > 4000\n"
    found = solved(tmp_path, text, elements=1, search_s=0.1)
    assert found.error == ""
    assert found.imported == "whole"
    assert found.sizes == {}
    assert [region.reason for region in found.regions] == ["no time was left for a search"]


WRONG = {
    "a difference": "return super().forward(x) * 1.001",
    "another shape": "return super().forward(x)[:, :1]",
    "another type": "return super().forward(x).double()",
    "another structure": "return [super().forward(x)]",
    "another parameter": "return torch.nn.functional.linear(x, self.linear.weight * 0, self.linear.bias)",
    "no tensor": "return 1",
    "the first result again": "self.kept = getattr(self, 'kept', super().forward(x)); return self.kept",
    "writes its input": "y = super().forward(x); x.zero_(); return y + x",
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_module_is_found_out(kind: str) -> None:
    problem = names_of(Problem("t", "x: n n", "self.linear(x)", "n=8", "n", "self.linear = nn.Linear(n, n)"))
    exec(f"class ModelNew(Model):\n    def forward(self, x):\n        {WRONG[kind]}\n", problem)
    found = compare_modules(problem, problem, 3)
    assert found.answer == ("passed" if kind == "writes its input" else "failed"), found
    assert kind == "writes its input" or found.reason


def test_problems_that_break_their_process_are_rows_as_any_other(tmp_path: Path) -> None:
    for name, text in (("1_Hangs", "while True: pass"), ("2_Ends", "import os; os._exit(7)")):
        (tmp_path / f"{name}.py").write_text(text)
    hangs, ends = find_problems(tmp_path)
    (found,) = run_problems([hangs], RunOptions(tmp_path / "out", limit_s=1.0))
    assert (found.imported, found.error) == ("error", "not finished after 1 seconds")
    (found,) = run_problems([ends], RunOptions(tmp_path / "out", limit_s=300.0))
    assert found.imported == "error"
    assert found.error.startswith("its process ended with 7")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise ValueError('no problem')", "ValueError: no problem"),
        ("x = 1", "expected a file that defines Model, get_inputs, get_init_inputs"),
        ("def", "SyntaxError"),
        ("import torch\nModel = get_inputs = get_init_inputs = lambda: 1 / 0", "ZeroDivisionError"),
    ],
)
def test_files_that_are_no_problems_say_why(text: str, error: str, tmp_path: Path) -> None:
    found = solved(tmp_path, text)
    assert found.imported == "error"
    assert error in found.error


def test_problems_are_found_by_level_and_number(tmp_path: Path) -> None:
    for name in ("level1/2_b.py", "level1/10_a.py", "level2/1_c.py", "level1/__init__.py", "level1/notes.py"):
        path = tmp_path / "KernelBench" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for root in (tmp_path, tmp_path / "KernelBench"):
        assert [one.name for one in find_problems(root)] == ["level1/2_b", "level1/10_a", "level2/1_c"]
    assert [one.name for one in find_problems(tmp_path, {2})] == ["level2/1_c"]
    assert [one.name for one in find_problems(tmp_path, (), "a.py")] == ["level1/10_a"]
    assert [one.name for one in find_problems(tmp_path / "KernelBench" / "level2")] == ["1_c"]
    assert [one.name for one in find_problems(tmp_path / "KernelBench" / "level2" / "1_c.py")] == ["1_c"]
    for wrong in (tmp_path / "nowhere", tmp_path / "KernelBench" / "level3", tmp_path):
        with pytest.raises(ProgramError, match=r"problem files|directory"):
            find_problems(wrong, {9})


def test_the_commit_is_that_of_the_checkout(tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    assert commit_of(tmp_path) == ""
    git("init", "-q")
    (tmp_path / "a.py").touch()
    git("add", "a.py")
    git("commit", "-qm", "a")
    commit = git("rev-parse", "HEAD")
    assert commit_of(tmp_path) == commit_of(tmp_path / "a.py") == commit
    (tmp_path / "a.py").write_text("b")
    assert commit_of(tmp_path) == commit + "+"
    (tmp_path / "outside").mkdir()
    assert commit_of(tmp_path / "outside") == ""


def test_the_table_says_what_became_of_each(tmp_path: Path) -> None:
    found = solved(tmp_path, chosen("ReLU"))
    failed = ProblemOutcome(problem="level1/2_x", imported="error", error="what|went\nwrong")
    table = OutcomeTable(
        directory="d", commit="c0ffee", versions={"torch": "2"}, options={"trials": 3}, problems=(found, failed)
    )
    text = markdown(table)
    assert "Commit c0ffee" in text
    assert "| problem | whole | 1 | 1 | equivalent |" in text
    assert "- level1/2_x: what|went\\nwrong" in text
    assert format_row(failed)[3:] == ("-", "-", "-", "-", "not run")
    assert stage_counts([found, failed])[1].startswith("level1: 1 problems, 0 imported whole")


def test_evidence_that_does_not_hold_is_no_operator(tmp_path: Path) -> None:
    found = solved(tmp_path, chosen("Gemm_Sigmoid_Sum"))
    path = Path(found.regions[0].evidence)
    assert result_at(path).digest == found.regions[0].candidate
    assert operator_at(path) is operator_at(path)
    proofs = sorted(path.rglob("equivalence.json"))
    assert proofs
    for proof in proofs:
        proof.write_text(proof.read_text().replace("1", "2"))
    with pytest.raises(MirageError):
        operator_at(path)
    with pytest.raises(RunError, match="expected evidence"):
        operator_at(tmp_path)
