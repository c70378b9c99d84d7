"""Random modules, and torch's own operator tests, held to the contract: a sample of two benchmarks."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

from mirage_formal.torch.op_table import ROWS  # noqa: E402
from tests.kit.paths import REPOSITORY  # noqa: E402
from tests.kit.sampling import THOROUGH, number  # noqa: E402
from tests.kit.torch.random_modules import IDIOMS, Module, emulated, random_module, values, violation  # noqa: E402

_CHUNK = 20


@pytest.mark.parametrize("first", range(0, number(120, 2000), _CHUNK))
def test_random_modules_keep_the_contract(first: int) -> None:
    """`python -m benchmarks.fuzz_torch` has more; it prints what fails as the smallest module."""
    found = [one for seed in range(first, first + _CHUNK) if (one := violation(seed)) is not None]
    assert [f"{one.seed}: {one.said}\n{one.text}" for one in found] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(number(3, 20)))
def test_candidates_of_random_modules_keep_it_on_the_emulator(seed: int, tmp_path: Any) -> None:
    found = emulated(seed, tmp_path, 5.0)
    assert found is None, f"{found.said}\n{found.text}"


def test_modules_are_random_as_users_write_them_and_the_same_again() -> None:
    modules = [random_module(seed) for seed in range(200)]
    assert modules[:20] == [random_module(seed) for seed in range(20)]
    kinds = {item.dtype for module in modules for item in module.inputs.values()}
    assert kinds == {"float16", "bfloat16", "float32", "bool"}
    assert {len(module.steps) for module in modules} >= {1, 2, 3, 4}
    called = set(re.findall(r"torch\.(?:nn\.functional\.|ops\.aten\.)?(\w+)", " ".join(m.text for m in modules)))
    assert len(called) > 80
    for module in modules[:20]:
        made = values(module)
        results = module.function()(*module.arguments())
        for name, result in zip(module.outputs, results, strict=True):
            assert torch.equal(result.nan_to_num(nan=7.0), made[name].nan_to_num(nan=7.0))


def test_every_row_and_every_idiom_occurs() -> None:
    """In some of the modules, before their tensors have names of their own."""
    from tests.kit.torch import random_modules

    assert set(random_modules._EXAMPLES) == {row.example for row in ROWS if not row.refused}
    assert len(set(IDIOMS)) == len(IDIOMS) >= 40


def test_a_smaller_module_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a module whose line t1 is wrong, the line and what it reads are left."""
    from tests.kit.torch import random_modules

    module = next(m for m in map(random_module, range(1000)) if len(m.steps) > 3 and "torch.exp(" in m.text)
    wrong = next(step for step in module.steps if "torch.exp(" in step.text)

    def said(given: Module, sets: Any) -> str:
        return "wrong" if any(step.name == wrong.name for step in given.steps) else ""

    monkeypatch.setattr(random_modules, "_said", said)
    _, text = random_modules._smallest(module, "wrong", ())
    assert text.count("\n") == 3
    assert wrong.text in text or "torch.exp(" in text


@pytest.mark.slow
def test_torchs_own_samples_keep_the_contract() -> None:
    """In a process of its own, as torch's database changes switches of torch.

    `python -m benchmarks.opinfo_torch` has all of them.
    """
    if find_spec("expecttest") is None:
        pytest.skip("torch.testing's database needs expecttest, which is not installed: make test-torch installs it")
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.opinfo_torch", "--jobs", "0"]
    command += ["--types", *(("float16", "bfloat16", "float32") if THOROUGH else ("float16", "float32"))]
    command += ["--most", str(number(1, 20))]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    counted = re.search(r"(\d+) samples of (\d+) operators compared, 0 differ", done.stdout)
    assert counted is not None
    assert int(counted[1]) > 150
    assert int(counted[2]) > 90
