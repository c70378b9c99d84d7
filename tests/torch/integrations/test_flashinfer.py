"""Runs in FlashInfer-Bench's records: as its documents describe them, and computing what the program does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mirage_formal.frontend.kernel_builder import KernelBuilder
from mirage_formal.graph.types import DType
from mirage_formal.records import NUMERICS_FILE, NumericsRecord, decode, read_file
from mirage_formal.semantics import float64_reference
from mirage_formal.support.errors import RunError, UnsupportedError
from mirage_formal.torch.integrations.flashinfer.dataset_export import export_best
from mirage_formal.torch.integrations.flashinfer.record_conversion import definition, name_inputs
from tests.kit.paths import REPOSITORY
from tests.kit.runs.known_engine import PROGRAMS
from tests.kit.runs.small_runs import make

jsonschema: Any = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

SCHEMA = REPOSITORY / "tests" / "kit" / "torch" / "flashinfer_bench.schema.json"
pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one candidate's kernels, compared and timed."""
    root = tmp_path_factory.mktemp("run") / "attention"
    make(root)
    return root


def check(kind: str, value: Any) -> None:
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(value, {**schema, "$ref": f"#/$defs/{kind}"}, cls=jsonschema.Draft202012Validator)


def written(out: Path) -> dict[str, Any]:
    """Every record by its path; of lines, a list."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*.json*")):
        text = path.read_text()
        lines = path.suffix == ".jsonl"
        found[path.relative_to(out).as_posix()] = (
            [json.loads(one) for one in text.splitlines()] if lines else json.loads(text)
        )
    return found


def test_a_candidate_with_tensor_maps_is_skipped(run: Path, tmp_path: Path) -> None:
    """As by the other exports; the summary says why."""
    root = tmp_path / "run"
    shutil.copytree(run, root)
    (path,) = root.glob("kernels/*/launch.json")
    record = json.loads(path.read_text())
    for launch in record["launches"]:
        launch["maps"] = [{"argument": 0, "dtype": "float16", "rows": 8, "stride": 64}]
    path.write_text(json.dumps(record))
    name = path.parent.name
    made = export_best(root, tmp_path / "out", 1, "fused")
    assert [one for one in made.skipped if one.startswith(f"{name}: ") and "with tensor maps" in one]


def test_a_run_is_written_as_the_documents_say(run: Path, tmp_path: Path) -> None:
    made = export_best(run, tmp_path, 2, "fused")
    found = written(tmp_path)
    name = made.definition
    assert list(found) == sorted(
        [
            f"definitions/fused/{name}.json",
            *(f"solutions/mirage_formal/fused/{name}/{one}.json" for one in made.solutions),
            f"traces/mirage_formal/fused/{name}.jsonl",
            f"workloads/fused/{name}.jsonl",
        ]
    )
    check("definition", defined := found[f"definitions/fused/{name}.json"])
    assert {axis for spec in defined["inputs"].values() for axis in spec["shape"]} <= set(defined["axes"])
    for one in made.solutions:
        check("solution", solved := found[f"solutions/mirage_formal/fused/{name}/{one}.json"])
        assert solved["definition"] == name
        entry, _ = solved["spec"]["entry_point"].split("::")
        assert entry in {source["path"] for source in solved["sources"]}
    (work,) = found[f"workloads/fused/{name}.jsonl"]
    check("trace", work)
    assert work["workload"]["inputs"].keys() == defined["inputs"].keys()
    (trace,) = found[f"traces/mirage_formal/fused/{name}.jsonl"]
    check("trace", trace)
    evaluation = trace["evaluation"]
    assert (evaluation["status"], evaluation["environment"]["hardware"]) == ("PASSED", "Test")
    assert evaluation["performance"]["latency_ms"] == 0.003
    assert "was not timed" in evaluation["log"]
    assert trace["solution"] == made.solutions[0]
    assert made.traces == 1


def test_the_schema_refuses_what_the_documents_do(run: Path, tmp_path: Path) -> None:
    made = export_best(run, tmp_path, 1, "fused")
    trace = written(tmp_path)[f"traces/mirage_formal/fused/{made.definition}.jsonl"][0]
    for path, value in (
        (("evaluation", "performance"), None),
        (("evaluation", "status"), "GOOD"),
        (("workload", "inputs"), {}),
        (("evaluation", "correctness", "max_absolute_error"), -1),
    ):
        wrong = json.loads(json.dumps(trace))
        place = wrong
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            check("trace", wrong)


def test_reference_and_solution_compute_the_program(run: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'mirage_formal[torch]'")
    made = export_best(run, tmp_path / "out", 1, "fused")
    found = written(tmp_path / "out")
    defined = found[f"definitions/fused/{made.definition}.json"]
    solved = found[f"solutions/mirage_formal/fused/{made.definition}/{made.solutions[0]}.json"]
    for source in solved["sources"]:
        path = tmp_path / "solution" / source["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source["content"])
    program = PROGRAMS["attention"]()[0]
    orders = name_inputs(program, "x").orders
    torch.manual_seed(0)
    tensors, arrays = {}, []
    for (name, spec), order in zip(defined["inputs"].items(), orders, strict=True):
        shape = [defined["axes"][axis]["value"] for axis in spec["shape"]]
        tensors[name] = torch.randn(shape).to(getattr(torch, spec["dtype"])) * 0.5
        arrays.append(tensors[name].double().numpy().transpose(np.argsort(order)))
    wanted = float64_reference.run(program, arrays)
    for text, file in ((defined["reference"], ""), (solved["sources"][0]["content"], "main.py")):
        names: dict[str, Any] = {"__file__": str(tmp_path / "solution" / file)}
        exec(text, names)
        result = names["run"](**tensors)
        results = result if isinstance(result, tuple) else (result,)
        assert len(results) == len(defined["outputs"])
        for mine, theirs, spec in zip(results, wanted, defined["outputs"].values(), strict=True):
            assert list(mine.shape) == [defined["axes"][axis]["value"] for axis in spec["shape"]]
            np.testing.assert_allclose(mine.double().numpy(), theirs, rtol=2e-2, atol=2e-2)


def test_a_measurement_outside_its_tolerance_is_incorrect_and_has_no_time(run: Path, tmp_path: Path) -> None:
    root = tmp_path / "attention"
    shutil.copytree(run, root)
    (file,) = root.glob(f"kernels/*/{NUMERICS_FILE}")
    record = decode(read_file(file), NumericsRecord, "numerics")
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, answer="outside")))
    made = export_best(root, tmp_path / "out", 1, "fused")
    (trace,) = written(tmp_path / "out")[f"traces/mirage_formal/fused/{made.definition}.jsonl"]
    check("trace", trace)
    assert (trace["evaluation"]["status"], trace["evaluation"]["performance"]) == ("INCORRECT_NUMERICAL", None)
    file.write_bytes(msgspec.json.encode(msgspec.structs.replace(record, answer="undecided")))
    assert export_best(root, tmp_path / "again", 1, "fused").traces == 0


def test_names_and_strides_that_the_records_cannot_have() -> None:
    builder = KernelBuilder()
    x = builder.new_input((4, 8), DType.FLOAT16, name="lambda")
    y = builder.new_input((8, 4), DType.FLOAT16, strides=(1, 8), name="t3")
    builder.mark_output(builder.matmul(x, y))
    given = name_inputs(builder.freeze(), "A (title)")
    assert given.names == ("input_0", "input_1")
    assert given.views == ("input_0", "input_1.permute([1, 0])")
    made = definition(given)
    assert made.name.startswith("fused_a_title_")
    assert made.inputs["input_1"].shape == ("n4", "n8")
    apart = KernelBuilder()
    z = apart.new_input((4, 8), DType.FLOAT16, strides=(16, 1), name="z")
    apart.mark_output(apart.exp(z))
    with pytest.raises(UnsupportedError, match="densely"):
        name_inputs(apart.freeze(), "x")


def test_a_band_mask_is_made_by_the_reference() -> None:
    torch: Any = pytest.importorskip("torch", reason="torch is not installed")
    builder = KernelBuilder()
    mask = builder.band((4, 6), upper=0, name="m")
    x = builder.new_input((4, 6), dtype=DType.FLOAT16, name="x")
    builder.mark_output(builder.select(mask, x, 0))
    made = definition(name_inputs(builder.freeze(), "masked"))
    assert made.inputs.keys() == {"x"}
    names: dict[str, Any] = {}
    exec(made.reference, names)
    values = torch.ones(4, 6, dtype=torch.float16)
    assert torch.equal(names["run"](values), torch.tril(values))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="expected the directory of a run"):
        export_best(tmp_path, tmp_path / "out", 1, "fused")
    assert not (tmp_path / "out").exists()
