"""Triton files in the process that runs them: with Triton's interpreter in the place of a GPU, NumPy in that of CuPy.

And compiled ahead: what lands in Triton's cache is what a launch looks for.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mirage_formal.autotune.triton.launch_variants import triton_texts
from mirage_formal.autotune.triton.triton_runner import TritonRuns
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.device.cupy_runner import Elements
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DTensor, DType
from tests.kit.runs import small_runs

pytest.importorskip("torch")
pytest.importorskip("triton")

#: What a file's results are said to be as it is, with a row that nothing writes, and with wrong results.
_COMPARED = """
import sys, warnings
from pathlib import Path
import numpy as np
warnings.simplefilter("ignore")  # padded rows overflow
sys.modules["cupy"] = np
from mirage_formal.codegen.numerics.result_comparison import computed_answer, check
from mirage_formal.device.cupy_runner import Elements
from mirage_formal.codegen.executable import load_executable
from mirage_formal.kernel_build.triton.triton_callable import loaded
from mirage_formal.autotune.triton.triton_runner import TritonRuns
executable, text = load_executable(Path(sys.argv[1])), Path(sys.argv[2]).read_text()
head, found, tail = text.partition("    tl.store(")
unwritten = head + found + tail.replace("[:, None] < 4)", "[:, None] < 3)", 1)
wrong = text.replace("tl.exp(sub_7)", "tl.exp(sub_7) + 0.05")
assert len({text, unwritten, wrong}) == 3
for changed in (text, unwritten, wrong):
    runs = TritonRuns(Elements(executable), loaded(changed))
    record = check(executable.program, executable.graph, executable.digest, runs.run, device="Interpreter")
    print(computed_answer(record), record.candidate == executable.digest)
"""
#: Files compiled ahead; then the same functions compiled as a launch compiles them, for tensors that have memory.
_AHEAD = """
import os, re, sys
from pathlib import Path
import torch
from mirage_formal.kernel_build.triton.triton_callable import loaded
from mirage_formal.autotune.triton.precompile import Task, _CompileOnlyFunction, compiled
cache = Path(os.environ["TRITON_CACHE_DIR"])
text = Path(sys.argv[1]).read_text()
print(repr(compiled(Task(text, "sm_90a"))))
before = sorted(path.name for path in cache.iterdir())
assert any(cache.rglob("*.cubin"))
module = loaded(text)
for name in [name for name in vars(module) if re.fullmatch(r"kernel\\d+", name)]:
    setattr(module, name, _CompileOnlyFunction(getattr(module, name)))
module.run(*[torch.empty_strided(*one[:2], dtype=one[2]) for one in module.INPUTS])
print(sorted(path.name for path in cache.iterdir()) == before)
print(compiled(Task(text.replace("tl.exp(", "tl.none_such("), "sm_90a")))
print(compiled(Task(text, "gfx942")))
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels of a candidate, with its Triton file beside them."""
    root = tmp_path_factory.mktemp("files") / "run"
    small_runs.make(root)
    (directory,) = (root / "kernels").iterdir()
    (one,) = triton_texts(directory, [LaunchOptions(2.0, 3)])
    assert "num_warps=8, num_stages=3" in one.text
    (root / "file.py").write_text(one.text)
    return directory


def said(code: str, *given: Path, **more: str) -> list[str]:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | more
    command = [sys.executable, "-c", code, *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("strides", [(12, 4, 1), (24, 1, 3), (0, 4, 1)])
def test_torch_sees_the_elements_that_are_drawn(
    dtype: DType, strides: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same memory, in the strides of the input, in every element type; and what it computes comes back."""
    torch: Any = import_module("torch")
    monkeypatch.setitem(sys.modules, "cupy", np)
    item = Input("x", DTensor((2, 3, 4), dtype), strides)
    program = KernelGraph((item,), (Op(OpKind.EXP, (0,)),), (1,))
    seen: list[Any] = []

    def run(x: Any, poison: bool) -> Any:
        assert poison, "what nobody writes has to be seen"
        seen.append(x)
        return x * 2

    elements = Elements(SimpleNamespace(program=program))  # type: ignore[arg-type]
    values = np.arange(24, dtype=np.float64).reshape(2, 3, 4) / 4
    values = np.broadcast_to(values[:1], values.shape) if strides[0] == 0 else values
    (found,) = TritonRuns(elements, SimpleNamespace(run=run)).run([values])  # type: ignore[arg-type]
    (tensor,) = seen
    assert (tensor.dtype, tensor.stride()) == (getattr(torch, dtype.value), strides)
    np.testing.assert_array_equal(tensor.double().numpy(), values)
    np.testing.assert_array_equal(found, 2 * values)


@pytest.mark.slow
def test_results_are_compared_and_what_nobody_writes_is_seen(kernels: Path) -> None:
    found = said(_COMPARED, kernels, kernels.parents[1] / "file.py", TRITON_INTERPRET="1")
    assert found == ["within True", "outside True", "outside True"]


@pytest.mark.slow
def test_what_is_compiled_ahead_is_what_a_launch_looks_for(kernels: Path, tmp_path: Path) -> None:
    found = said(_AHEAD, kernels.parents[1] / "file.py", TRITON_CACHE_DIR=str(tmp_path))
    assert found[:2] == ["''", "True"]
    assert found[2].startswith("it does not compile: ")
    assert "none_such" in "\n".join(found[2:])
    assert found[-1].startswith("it does not compile: UnsupportedError triton: expected an architecture such as")
