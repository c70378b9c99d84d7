"""``load``: results from directories, in a process that cannot import a solver."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

import mirage_formal as mf
from mirage_formal.cache.search_store import STORE_VARIABLE, SWITCH, SearchCache
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import FormatError, RunError, SpaceError, TargetError
from tests.kit.paths import REPOSITORY
from tests.store.entries import Case, edit_json, several, sign_run, single, warm

#: Loads what the arguments name, recalls a call, and calls a result; solvers cannot be imported.
FRESH = """
import sys
from importlib.abc import MetaPathFinder

SOLVERS = ("z3", "cvc5", "galois")

class Forbidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in SOLVERS:
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Forbidden())
import warnings
from pathlib import Path
import numpy as np
import mirage_formal as mf
from tests.store.entries import several, single

for path in sys.argv[2:]:
    results = mf.load(path)
    print(len(results), [r.digest[:12] for r in results][0], type(results[0].verdict).__name__)
for made in (single, several):
    program, settings = made()
    options = {"config": settings.config, "keep": settings.keep, "workers": 1}
    options |= {name: getattr(settings, name) for name in ("max_kernel_ops", "max_block_ops")}
    options = {name: value for name, value in options.items() if value is not None}
    found = mf.superoptimize(program, out=Path(sys.argv[1]) / made.__name__, **options)
    print(len(found), found[0].digest[:12], type(found[0].verdict).__name__)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    program, _ = single()
    x = [np.ones(i.tensor.shape, np.float16) for i in program.inputs]
    print(mf.load(sys.argv[2])[0](*x).shape)
print([name for name in SOLVERS if name in sys.modules])
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return warm(single(), tmp_path_factory.mktemp("single"))


@pytest.fixture(scope="module")
def whole(one: Case, tmp_path_factory: pytest.TempPathFactory) -> Case:
    from tests.store.entries import using

    case = Case(*several(), tmp_path_factory.mktemp("whole") / "out", one.store)
    with using(one.store):
        case.call(case.out)
    return case


def candidate(case: Case) -> Path:
    return sorted((case.out / "candidates").iterdir())[0]


def test_a_process_without_solvers_has_everything(one: Case, whole: Case, tmp_path: Path) -> None:
    entries = [path for path in SearchCache(one.store).entries() if SearchCache().read_record(path).value.candidates]
    paths = [one.out, candidate(one), whole.out, *entries]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), STORE_VARIABLE: str(one.store)}
    environment.pop(SWITCH, None)
    command = [sys.executable, "-c", FRESH, str(tmp_path), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    first = mf.load(one.out)[0]
    assert lines[0] == f"{len(mf.load(one.out))} {first.digest[:12]} Equivalent"
    assert lines[1] == f"1 {first.digest[:12]} Equivalent"
    assert len(lines) == len(paths) + 4
    assert all(line.endswith("Equivalent") for line in lines[:-2])
    assert lines[-4].split() == lines[0].split()
    assert lines[-3].split() == lines[2].split()
    assert lines[-2] == "(16, 16)"
    assert lines[-1] == "[]"


def test_loaded_results_are_those_of_the_search(one: Case, whole: Case) -> None:
    for case in (one, whole):
        found = mf.load(case.out)
        assert [result.rank for result in found] == list(range(1, len(found) + 1))
        assert [result.cost for result in found] == sorted(result.cost for result in found)
        for result in found:
            rng = np.random.default_rng(0)
            arrays = [rng.uniform(0.5, 1, item.tensor.shape) for item in case.program.inputs]
            pairs = zip(
                float64_reference.run(case.program, arrays), float64_reference.run(result.graph, arrays), strict=True
            )
            for want, got in pairs:
                np.testing.assert_allclose(got, want, rtol=1e-9)


@pytest.mark.filterwarnings("ignore:no GPU with CuPy")
def test_results_are_pickled_and_copied(one: Case, whole: Case) -> None:
    for case in (one, whole):
        result = mf.load(case.out)[0]
        for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), copy.copy(result)):
            assert other == result
            assert other.directory == result.directory
            arrays = [np.full(item.tensor.shape, 0.5, np.float16) for item in case.program.inputs]
            for got, want in zip(other(arrays), result(arrays), strict=True):
                np.testing.assert_array_equal(got, want)


def test_a_changed_file_is_refused_by_name(one: Case, whole: Case, tmp_path: Path) -> None:
    for number, (case, name) in enumerate(((one, "mugraph.json"), (one, "verification.json"), (whole, "summary.json"))):
        copied = Path(shutil.copytree(case.out, tmp_path / str(number)))
        path = next(copied.rglob(name))
        path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
        with pytest.raises(FormatError, match=name):
            mf.load(copied)


def test_what_is_no_directory_of_results_is_refused(one: Case, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", one.out / "run.json", one.out / "candidates"):
        with pytest.raises(RunError, match="expected a directory of results"):
            mf.load(path)
    unfinished = Path(shutil.copytree(one.out, tmp_path / "run"))
    (unfinished / "summary.json").unlink()
    with pytest.raises(RunError, match="without a summary"):
        mf.load(unfinished)
    with pytest.raises(SpaceError, match="expected a directory"):
        mf.load("")
    with pytest.raises(TargetError):
        mf.load(one.out, target="toaster")


def test_a_target_with_other_figures_has_to_be_named(one: Case, tmp_path: Path) -> None:
    from mirage_formal.records import key_of
    from tests.store.entries import run_record

    copied = Path(shutil.copytree(one.out, tmp_path / "run"))
    identity = msgspec.structs.replace(run_record(copied).identity, target_digest="0" * 64)
    key = key_of(identity)
    edit_json(copied / "run.json", lambda value: value.update(identity=msgspec.to_builtins(identity), key=key))
    edit_json(copied / "summary.json", lambda value: value.update(key=key))
    sign_run(copied)
    with pytest.raises(TargetError, match="as they were at the search"):
        mf.load(copied)
    assert mf.load(copied, target="h200")
