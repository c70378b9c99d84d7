"""The module itself: light to import, complete, and passing its options on."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mirage_formal as mf
from mirage_formal.api import request
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.run.progress import Progress, RunPhase, bars, progress_display
from tests.kit.processes import clock_of

HEAVY = ("z3", "galois", "cvc5", "numpy", "cupy", "torch", "sympy", "numba")


def test_import_is_light() -> None:
    code = f"import sys, mirage_formal; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_building_and_freezing_a_program_is_light() -> None:
    code = (
        "import sys, mirage_formal as mf\n"
        "g = mf.new_kernel_graph()\n"
        "X = g.new_input((4, 4))\n"
        "g.mark_output(g.softmax(X * 0.5))\n"
        "from mirage_formal.graph.canonical import digest\n"
        "digest(g.freeze())\n"
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_api_is_what_it_is() -> None:
    """A name that comes or goes is a decision: it is written down here."""
    assert set(mf.__all__) == {
        *("Graph", "Tensor", "new_graph", "new_kernel_graph", "BlockBuilder", "BlockTensor", "new_threadblock_graph"),
        *("DType", "float16", "bfloat16", "float32"),
        *("superoptimize", "Options", "Result"),
        *("equivalence", "Verdict", "Equivalent", "Probable", "Different", "Unknown"),
        *("MirageError", "ClusterError", "DTypeError", "FormatError", "GraphError", "NothingFoundError"),
        *("ProgramError", "RunError", "ShapeError", "SpaceError", "TargetError", "UnsupportedError", "WorkerError"),
        *("IgnoredOptionWarning", "set_gpu_device_id", "bypass_compile_errors", "__version__"),
        *("generate_cuda_program", "generate_triton_program", "from_torch", "load", "optimize"),
        *("convert_dtype_to_torch_type", "convert_torch_type_to_dtype"),
    }


def test_no_public_name_is_also_a_module() -> None:
    """A function that is called like a module beside it hides it, or is hidden by it."""
    package = Path(mf.__file__).parent
    for path in [package, *(found.parent for found in package.rglob("__init__.py"))]:
        names = {node.name for node in ast.parse((path / "__init__.py").read_text()).body if hasattr(node, "name")}
        beside = {found.stem for found in path.iterdir() if found.is_dir() or found.suffix == ".py"}
        assert names & beside == set(), path
    assert set(mf.__all__) & {found.stem for found in package.glob("*.py")} == set()


def test_public_names_exist_and_have_documentation() -> None:
    for name in mf.__all__:
        assert hasattr(mf, name)
    for owner in (mf.Graph, mf.BlockBuilder, mf.Tensor, mf.BlockTensor):
        for name in dir(owner):
            if not name.startswith("_") and callable(getattr(owner, name)):
                assert getattr(owner, name).__doc__, f"{owner.__name__}.{name}"


class FakeRequest:
    """Stands for the search and keeps what it was asked."""

    def __init__(self, results: list[Any]) -> None:
        self.results = results
        self.program: Any = None
        self.options: dict[str, Any] = {}

    def superoptimize(self, program: KernelGraph, **options: Any) -> list[Any]:
        self.program, self.options = program, options
        return self.results


@pytest.fixture
def graph() -> mf.Graph:
    graph = mf.new_kernel_graph()
    X = graph.new_input((4, 4))
    graph.mark_output(graph.exp(X))
    return graph


def install(monkeypatch: pytest.MonkeyPatch, results: list[Any]) -> FakeRequest:
    fake = FakeRequest(results)
    monkeypatch.setattr(request, "superoptimize", fake.superoptimize)
    return fake


def test_superoptimize_passes_on(monkeypatch: pytest.MonkeyPatch, graph: mf.Graph) -> None:
    fake = install(monkeypatch, ["best", "second"])
    best: object = graph.superoptimize(config="attention", griddims=[(4, 1, 1)], franges=[4], workers=2)
    assert best == "best"
    assert fake.program is graph
    assert fake.options == {
        "config": "attention",
        "griddims": [(4, 1, 1)],
        "franges": [4],
        "workers": 2,
    }
    ranked: object = mf.superoptimize(graph, config="mlp")
    assert ranked == ["best", "second"]
    assert fake.options == {"config": "mlp"}
    again: object = mf.superoptimize(graph.freeze())
    assert again == ["best", "second"]


def test_verbose_prints_progress(
    monkeypatch: pytest.MonkeyPatch, graph: mf.Graph, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = install(monkeypatch, ["best"])
    graph.superoptimize(verbose=True)
    watch = fake.options["watch"]
    clock = clock_of(monkeypatch, progress_display, still=True)
    counted = Progress(RunPhase.SEARCH, 1, 2, 30, 5, 0.5, pruned_by={"shape": 4})
    for phase, clock.ahead in ((RunPhase.SEARCH, 0.0), (RunPhase.SEARCH, 1.0), (RunPhase.CERTIFY, 1.0)):
        watch(replace(counted, phase=phase))
    assert capsys.readouterr().err.splitlines() == [
        f"{phase} 1 of 2 | 30 states | pruned 4: shape 4 | 5 candidates | 0.5 s"
        for phase in ("searching", "certifying")
    ]


class Shown:
    """What a notebook shows: each drawing of its one output."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def display(self, value: Any, *, display_id: bool) -> Any:
        assert display_id
        self.update(value)
        return self

    def update(self, value: Any) -> None:
        made = value._repr_mimebundle_(include=(), exclude=())
        assert set(made) == {"text/plain", "text/html"}
        self.drawn.append(made["text/html"])


@pytest.mark.parametrize("kernel", [object(), None], ids=["a notebook", "IPython in a terminal"])
def test_verbose_shows_bars_in_a_notebook(
    monkeypatch: pytest.MonkeyPatch, graph: mf.Graph, capsys: pytest.CaptureFixture[str], kernel: object
) -> None:
    shown = Shown()
    shell = SimpleNamespace(kernel=kernel)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=shown.display))
    fake = install(monkeypatch, ["best"])
    graph.superoptimize(verbose=True)
    clock = clock_of(monkeypatch, bars, still=True)
    counted = Progress(RunPhase.SEARCH, 0, 4, 1000, 3, 0.5, pruned_by={"<shape>": 10}, best_us=2.5)
    for done, clock.ahead in ((0, 0.0), (1, 0.1), (2, 0.3), (3, 0.35), (4, 0.4)):
        fake.options["watch"](replace(counted, done=done))
    if kernel is None:
        assert shown.drawn == []
        assert capsys.readouterr().err.startswith("searching 0 of 4 | 1,000 states | pruned 10: ")
        return
    assert [re.findall(r"(\d)/4", html) for html in shown.drawn] == [["0"], ["2"], ["4"]]
    assert "1,000 states" in shown.drawn[0]
    assert "&lt;shape&gt; 10" in shown.drawn[0]
    assert "best est. 2.5 us" in shown.drawn[0]
    assert capsys.readouterr() == ("", "")


def test_unknown_options_are_refused(graph: mf.Graph) -> None:
    """The real pipeline says which options there are."""
    with pytest.raises(mf.UnsupportedError, match="no option is called max_blok_ops") as raised:
        graph.superoptimize(max_blok_ops=3)  # type: ignore[call-arg]
    assert "max_block_ops" in raised.value.hint


def test_options_of_other_systems_warn(monkeypatch: pytest.MonkeyPatch, graph: mf.Graph) -> None:
    fake = install(monkeypatch, ["best"])
    with pytest.warns(mf.IgnoredOptionWarning) as caught:
        graph.superoptimize(  # type: ignore[call-arg]
            config="mlp", warmup_iters=16, profile_iters=1000, use_graph_dataset=True, backend="cuda"
        )
    assert {str(w.message).split()[2].split("=")[0] for w in caught} == {
        "warmup_iters",
        "profile_iters",
        "use_graph_dataset",
    }
    assert all(w.filename == __file__ for w in caught)
    assert "warmup_iters" not in fake.options
    assert fake.options["backend"] == "cuda"
    with pytest.warns(mf.IgnoredOptionWarning, match="set_gpu_device_id"):
        mf.set_gpu_device_id(0)
    with pytest.warns(mf.IgnoredOptionWarning, match="bypass_compile_errors"):
        mf.bypass_compile_errors()


def test_superoptimize_mistakes(monkeypatch: pytest.MonkeyPatch, graph: mf.Graph) -> None:
    install(monkeypatch, ["best"])
    with pytest.raises(mf.UnsupportedError, match="backend cuda, triton or auto, got 'nki'"):
        graph.superoptimize(backend="nki")
    with pytest.raises(mf.GraphError, match="expected a kernel graph, got list"):
        mf.superoptimize([])  # type: ignore[arg-type]
    with pytest.raises(mf.GraphError, match="at least one output"):
        mf.superoptimize(mf.new_kernel_graph())


def public_functions() -> Iterator[tuple[str, Callable[..., object]]]:
    """Every function and method that a user of the API calls."""
    for name in mf.__all__:
        value = getattr(mf, name)
        if inspect.isfunction(value):
            yield name, value
    for owner in (mf.Graph, mf.Tensor, mf.BlockBuilder, mf.BlockTensor):
        for name, value in inspect.getmembers(owner, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{owner.__name__}.{name}", value


@pytest.mark.parametrize(("name", "function"), list(public_functions()), ids=lambda x: x if isinstance(x, str) else "")
def test_documentation_has_every_argument_the_result_and_the_errors(name: str, function: Callable[..., object]) -> None:
    signature, text = inspect.signature(function), inspect.getdoc(function) or ""
    parameters = [p for p in signature.parameters.values() if p.name != "self"]
    owner, _, method = name.partition(".")
    if owner == "Tensor" and text.startswith(f"See ``Graph.{method}``"):
        assert f"Graph.{method}" in dict(public_functions())  # which has a case of its own here
        return
    if str(signature.return_annotation) == "NoReturn":
        assert "raises" in text
        return
    section = text.partition("Args:")[2]
    assert [p.name for p in parameters if f"    {p.name}: " not in section] == []
    if str(signature.return_annotation) != "None" and parameters:
        assert "Returns:" in text
    assert "Raises:" in text or not parameters or str(signature.return_annotation) == "None"
