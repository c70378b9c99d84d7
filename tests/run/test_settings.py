"""What a user may ask of a run, and which preset a program gets."""

from __future__ import annotations

import pytest

import mirage_formal as mf
from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.run.settings import Settings, as_program, choose_config, make_job, preprocess_job
from mirage_formal.search import preprocess
from mirage_formal.support.errors import ProgramError, SpaceError, TargetError
from tests.kit.paths import REPOSITORY
from tests.kit.runs.fake_engine import fused, program


def test_bad_settings_are_mistakes_of_the_user() -> None:
    graph = program()
    for changed, error, said in (
        (Settings(config="no-such"), SpaceError, "no-such"),
        (Settings(target="gpu9000"), TargetError, "gpu9000"),
        (Settings(engine="fast"), SpaceError, "engine"),
        (Settings(oracle="delphi"), SpaceError, "oracle"),  # type: ignore[arg-type]
        (Settings(workers=0), SpaceError, "workers"),
        (Settings(time_limit=-1.0), SpaceError, "time_limit"),
        (Settings(seed=-1), SpaceError, "seed"),
        (Settings(griddims=[(3, 1, 1)]), SpaceError, "axis x to divide"),
    ):
        with pytest.raises(error) as caught:
            make_job(graph, changed)
        assert said in str(caught.value)
    assert make_job(graph, Settings(griddims=[(4, 2, 1)])).space.grids == ((4, 2, 1),)


def test_settings_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def prover(*pair: KernelGraph) -> bool:
        raise AssertionError("the prover is asked")

    monkeypatch.setattr(preprocess, "_is_proved_equal", prover)
    graph = mf.new_kernel_graph()
    x = graph.new_input((4, 24))
    weights = graph.exp(x - x.max(1))
    graph.mark_output(weights / weights.sum(1))
    job = make_job(graph.freeze(), Settings())
    with pytest.raises(SpaceError, match="no-such"):
        make_job(graph.freeze(), Settings(config="no-such"))
    with pytest.raises(AssertionError, match="the prover is asked"):
        preprocess_job(job)


def test_moves_do_not_decide_the_preset() -> None:
    graph = mf.new_kernel_graph()
    x, w, a, b = (graph.new_input((8, 8)) for _ in range(4))
    graph.mark_output(x @ w + ((x @ a) @ b)[:, :8].T * 2)
    assert choose_config(graph.freeze()) == "lora"


def test_programs_must_be_programs() -> None:
    with pytest.raises(ProgramError, match="marked output"):
        make_job(KernelGraph(program().inputs, program().ops, ()), Settings())
    with pytest.raises(ProgramError, match="customized"):
        make_job(fused(program(), 2, 2, 1), Settings())
    with pytest.raises(ProgramError, match="kernel graph, got int"):
        as_program(5)
    assert as_program(program()) == program()


@pytest.mark.parametrize(
    ("file", "name", "config"),
    [
        ("attn", "attn", "attention"),
        ("qknorm", "qk", "attention"),
        ("qknorm", "qv", "attention"),
        ("rmsnorm", "rmsnorm", "norm"),
        ("lora", "lora", "lora"),
        ("gated_mlp", "gated_mlp", "mlp"),
        ("ntrans", "ntrans", "norm"),
        ("decode", "decode", "attention"),
    ],
)
def test_examples_have_a_preset(file: str, name: str, config: str) -> None:
    assert choose_config(load_programs(REPOSITORY / "examples" / f"{file}.py")[name]) == config


def test_a_scaled_adapter_has_the_preset_of_adapters() -> None:
    graph = mf.new_kernel_graph()
    x, w = graph.new_input((8, 64)), graph.new_input((64, 64))
    a, b = graph.new_input((64, 4)), graph.new_input((4, 64))
    graph.mark_output(x @ w + 0.5 * (x @ a @ b))
    assert choose_config(graph.freeze()) == "lora"


def test_a_plain_product_has_the_default_preset() -> None:
    graph = mf.new_kernel_graph()
    x = graph.new_input(dims=(4, 8), name="X")
    w = graph.new_input(dims=(8, 4), name="W")
    graph.mark_output(graph.matmul(x, w))
    assert choose_config(graph.freeze()) == "default"
