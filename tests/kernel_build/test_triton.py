"""Triton files of graphs, of results and of runs, and calls with that back end; neither torch nor Triton is needed."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.api import request
from mirage_formal.codegen.target import load_target
from mirage_formal.codegen.triton import function_writer
from mirage_formal.codegen.triton.address import TEXT, integer_constant, tile_address
from mirage_formal.device import launch
from mirage_formal.graph.formats.json import encode
from mirage_formal.kernel_build import __main__ as command
from mirage_formal.kernel_build.built_kernels import Acceptance, KernelRejected
from mirage_formal.kernel_build.candidate_preference import Alternatives
from mirage_formal.kernel_build.triton import triton_generator as triton
from mirage_formal.kernel_build.triton.triton_callable import TritonOptimized, load_module
from mirage_formal.kernel_build.triton.triton_log import access_records
from mirage_formal.records import TritonLogRecord, decode, sha256
from mirage_formal.run.results.result import Result, Results
from mirage_formal.support.options import CallOptions


def attention() -> mf.Graph:
    g = mf.new_kernel_graph()
    q, k = g.new_input(dims=(16, 64), name="q"), g.new_input(dims=(64, 32), name="k")
    g.mark_output(g.softmax(g.matmul(q, k), dim=1))
    return g


#: Options of a search whose results run Triton files.
TRITON: Any = {"backend": "triton", "accept_kernels": "tested", "keep": 2, "workers": 1, "cache": False}


#: Options of a build that writes Triton files.
WRITE = ("--backend", "triton", "--accept", "tested")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    g = mf.new_kernel_graph()
    x, w = g.new_input(dims=(4, 64), name="x"), g.new_input(dims=(64, 64), name="w")
    g.mark_output(g.matmul(g.rms_norm(x), w))
    out = tmp_path_factory.mktemp("run") / "norm"
    return mf.superoptimize(g, config="norm", out=out, **TRITON), out


def test_a_graph_is_written(tmp_path: Path) -> None:
    made = attention().generate_triton_program(tmp_path / "attention")
    text = (tmp_path / "attention.py").read_text(encoding="utf-8")
    assert text == made.code == made["code"] == mf.generate_triton_program(attention().freeze()).code
    assert dict(made) == {"code": text}
    with pytest.raises(KeyError):
        made["buf_size"]
    assert "torch.matmul(q, k)" in text
    assert '"""softmax along dim 1"""' in text
    ast.parse(text)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(mf.GraphError, match="generate_triton_program: expected a kernel graph, got int"):
        mf.generate_triton_program(3)  # type: ignore[arg-type]
    with pytest.raises(mf.RunError, match="expected a file that can be written"):
        attention().generate_triton_program(tmp_path / "none" / "file.py")
    with pytest.raises(mf.SpaceError, match="expected one of cuda, triton, auto, got"):
        request.superoptimize(attention(), backend="metal")


def test_results_of_a_search(searched: tuple[list[Any], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    results, _ = searched
    assert [one.backend for one in results] == ["triton"] * len(results)
    best = results[0]
    assert best.kernel() == best.triton_source()
    assert best.triton_source().startswith('"""candidate ')
    assert isinstance(best.optimized, TritonOptimized)
    monkeypatch.setattr(launch, "device_count", lambda: 0)
    x, w = (np.full(shape, 0.5, np.float16) for shape in ((4, 64), (64, 64)))
    with pytest.warns(launch.NoDeviceWarning) if not launch._say_no_gpu.cache_info().currsize else _nothing():
        np.testing.assert_allclose(best(x, w), np.full((4, 64), 32.0), rtol=1e-3)


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_the_command_writes_beside_the_run(
    searched: tuple[list[Any], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results, out = searched
    assert command.main([str(out), *WRITE, "--count", "1"]) == 0
    where = out.with_name(f"{out.name}-triton")
    path, log = sorted(where.iterdir(), key=lambda one: one.suffix, reverse=True)
    assert log.name == f"{path.stem}.json"
    assert f"built {path}" in capsys.readouterr().out
    assert path.name == f"{results[0].directory.name}.py"
    path.write_text("mine", encoding="utf-8")
    assert command.main([str(out), *WRITE, "--count", "1"]) == 2
    assert "expected no other file, got one" in capsys.readouterr().err
    assert path.read_text(encoding="utf-8") == "mine"
    assert command.main([str(out), *WRITE, "--count", "1", "--force"]) == 0
    assert command.main([str(out), *WRITE, "--out", str(tmp_path / "other"), "--count", "9"]) == 0
    assert len(list((tmp_path / "other").glob("*.py"))) == len(results)


def test_the_log_says_what_is_established_and_what_is_not(searched: tuple[list[Any], Path], tmp_path: Path) -> None:
    results, out = searched
    assert command.main([str(out), *WRITE, "--out", str(tmp_path), "--count", "1"]) == 0
    name = results[0].directory.name
    text, log = ((tmp_path / f"{name}{suffix}").read_bytes() for suffix in (".py", ".json"))
    record = decode(log, TritonLogRecord, name)
    assert record.file == sha256(text)
    assert (record.verdict, record.text, record.races) == ("equivalent", "not proved", "no claim")
    calls = [line for line in text.decode().split("\n") if "tl.load(" in line or "tl.store(" in line]
    assert len(record.accesses) == len(calls) > 0
    for one in record.accesses:
        assert (one.finding, one.means) == ("held", "interval")
        assert f"tl.{one.access}(" in text.decode().split("\n")[one.line - 1]


def test_a_file_that_is_out_of_bounds_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in the addresses is seen in the text, by code that did not write it."""
    own = tile_address

    def wrong(*given: Any) -> Any:
        address = own(*given)
        return replace(address, start=TEXT.add(address.start, integer_constant(1)))

    monkeypatch.setattr(function_writer, "tile_address", wrong)
    with pytest.raises(KernelRejected, match=r"expected accesses in bounds, got one of .*_ptr in kernel.*index = "):
        mf.generate_triton_program(attention())


def test_what_is_undecided_is_recorded_and_held_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    file = mf.generate_triton_program(attention()).file
    line = next(line for line in file.text.split("\n") if "tl.store(" in line)
    changed = replace(file, text=file.text.replace(line, line.replace("_ptr", "_ptr + unknown")))
    (one,) = (one for one in access_records(changed) if one.finding == "undecided")
    assert (one.access, one.means) == ("store", "")
    assert "not an expression of ids, counters and lanes: unknown" in one.reason
    with pytest.raises(ValueError, match="expected a means"):
        msgspec.structs.replace(one, finding="held").__post_init__()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--backend", "metal"], "expected one of cuda, triton, got"),
        (["--backend", "triton", "--arch", "sm_80"], "--arch: expected it with --backend cuda only"),
        (["--backend", "triton", "--forms"], "--forms: expected it with --backend cuda only"),
        (["--out", "x"], "--out: expected it with --backend triton only"),
        (["other", "--backend", "triton", "--accept", "tested", "--out", "x"], "--out: expected one RUN_DIR with it"),
        (["--backend", "triton"], "--backend: expected cuda or auto where only proved kernels are accepted, got "),
        (["--backend", "triton"], "add --accept tested"),
    ],
)
def test_options_that_do_not_fit(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["none", *given]) == 2
    assert said in capsys.readouterr().err


def test_calls_run_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what a GPU's tensors are replaced by; the file's ``run`` is what is called, and once loaded."""
    program = attention().freeze()
    calls: list[tuple[Any, ...]] = []

    def run(*given: Any) -> Any:
        calls.append(given)
        return "result"

    made: list[str] = []
    optimized = TritonOptimized(program, lambda: made.append("text") or "text")  # type: ignore[func-returns-value]
    monkeypatch.setattr(
        "mirage_formal.kernel_build.triton.triton_callable.load_module", lambda text: SimpleNamespace(run=run)
    )
    kind = SimpleNamespace(
        device=lambda value: 0, specs=lambda slots: (), addresses=lambda values, specs, device: [0] * len(values)
    )
    monkeypatch.setattr("mirage_formal.kernel_build.triton.triton_callable.adapter", lambda kind_: kind)
    torch = SimpleNamespace(cuda=SimpleNamespace(device=lambda device: _nothing()))
    monkeypatch.setattr("mirage_formal.kernel_build.triton.triton_callable.import_module", lambda name: torch)
    from mirage_formal.device.tensors import TensorLibrary

    for _ in range(2):
        assert optimized._on_device(["q", "k"], TensorLibrary.TORCH, None) == ["result"]
    assert (calls, made) == ([("q", "k")] * 2, ["text"])
    with pytest.raises(launch.TensorError, match="expected torch tensors on a GPU with the back end triton"):
        optimized._on_device(["q", "k"], TensorLibrary.CUPY, None)
    with pytest.raises(launch.TensorError, match="got some in host memory"):
        optimized._copied([])


@pytest.mark.parametrize("gpu", [True, False])
def test_what_is_prepared_was_launched_once(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing is compiled in a call, which may be captured."""
    seen: list[Any] = []
    on: list[Any] = []

    def device(number: int) -> Any:
        on.append(number)
        return _nothing()

    cuda = SimpleNamespace(is_available=lambda: gpu, current_device=lambda: 3, device=device)
    torch = SimpleNamespace(cuda=cuda, empty_strided=lambda *given, **more: (*given, more["dtype"], more["device"]))
    module = SimpleNamespace(run=lambda *given: seen.append(given), INPUTS=(((4, 8), (8, 1), "half"),))
    monkeypatch.setattr("mirage_formal.kernel_build.triton.triton_callable.load_module", lambda text: module)
    monkeypatch.setattr("mirage_formal.kernel_build.triton.triton_callable.import_module", lambda name: torch)
    optimized = TritonOptimized(attention().freeze(), lambda: "text")
    optimized.prepare()
    optimized.prepare(1)
    assert seen == ([(((4, 8), (8, 1), "half", "cuda"),)] * 2 if gpu else [])
    assert on == ([3, 1] if gpu else [])


def test_what_was_measured_falls_back_on_cuda_kernels_for_other_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that was not asked to be in Triton takes what any other takes."""
    program = attention().freeze()
    asked: list[tuple[Any, ...]] = []

    class Kernels(launch.Optimized):
        def _on_device(self, given: Any, kind: Any, out: Any) -> Any:
            asked.append((given, kind, out))
            return ["by CUDA"]

        def _copied(self, bits: Any) -> Any:
            return ["copied by CUDA"]

    optimized = TritonOptimized(program, lambda: "text", Kernels(program, lambda arch: None))  # type: ignore[arg-type, return-value]
    from mirage_formal.device.tensors import TensorLibrary

    assert optimized._on_device(["q", "k"], TensorLibrary.CUPY, None) == ["by CUDA"]
    assert asked == [(["q", "k"], TensorLibrary.CUPY, None)]
    assert optimized._copied([]) == ["copied by CUDA"]
    held = Alternatives([("a", encode(program))], program, load_target("h200")).in_file("text")
    assert held.triton_source() == "text"
    assert isinstance(held.in_triton, TritonOptimized)
    assert held.in_triton._otherwise is held.optimized
    assert Alternatives([("a", encode(program))], program, load_target("h200")).in_triton._otherwise is None  # type: ignore[attr-defined]


def test_what_was_not_measured_is_what_was_asked_for() -> None:
    for backend, expected in (("auto", "cuda"), ("triton", "triton"), ("cuda", "cuda")):
        found = request._apply_options(_NAMED, CallOptions(backend=backend, accept_kernels="tested"))  # type: ignore[arg-type]
        assert {one.backend for one in found} == {expected}


@dataclass(frozen=True)
class _Named:
    backend: str

    def accepting(self, accept: Acceptance) -> _Named:
        return self


_NAMED: Any = Results([cast(Result, _Named("cuda"))])


def test_without_triton_it_says_what_to_install() -> None:
    with pytest.raises(mf.UnsupportedError, match=r"expected torch and Triton, got: .*none_such"):
        load_module("import none_such\n")


def test_a_candidate_without_a_file_is_passed_over() -> None:
    program = attention().freeze()
    with pytest.raises(mf.UnsupportedError, match=r"expected a Triton file, got none: candidate a: .*too large"):
        triton.first_program([("a", program)], program, _broken())
    found = Alternatives([("a", encode(program))], program, load_target("h200")).triton()
    assert found.code.startswith('"""candidate a: ')


def _broken() -> Any:
    class Broken:
        @property
        def limits(self) -> Any:
            raise mf.UnsupportedError("too large", where="target")

    return Broken()
