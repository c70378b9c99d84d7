"""What the backend of torch.compile keeps where it can time: regions alone, then the whole graph.

There is no GPU here: times are made up, and what is timed is compared, as it has to compute the same.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

from mirage_formal.torch.modules import backend, profitability, region_search  # noqa: E402
from mirage_formal.torch.modules.custom_operators import _lay_out  # noqa: E402
from mirage_formal.torch.modules.function_plan import constant_on  # noqa: E402
from mirage_formal.torch.modules.graph_timing import TimedPair, draw_inputs  # noqa: E402
from mirage_formal.torch.modules.inductor import can_compile  # noqa: E402
from mirage_formal.torch.modules.module_report import ModuleReport  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore:no GPU with CuPy")]
nn = torch.nn


class Two(nn.Module):  # type: ignore[misc,name-defined]  # torch has no types where it is not installed
    """Two regions with an operator between them that no program has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.first, self.second = nn.RMSNorm(32, eps=1e-6), nn.Linear(32, 48), nn.Linear(48, 32)

    def forward(self, x: Any) -> Any:
        """The regions."""
        return torch.relu(self.second(torch.cumsum(self.first(self.norm(x)), -1))) * 2


def compiled(
    monkeypatch: pytest.MonkeyPatch, place: Path, times: list[TimedPair | None], own: Any = None
) -> tuple[ModuleReport, list[int]]:
    """Compile with these times, regions first; the report, and the operators in each graph that was timed."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = (own or Two)().requires_grad_(False), torch.randn(4, 32)
    counts: list[int] = []

    def compared(ours: Any, theirs: Any, inputs: Any) -> TimedPair | None:
        given = draw_inputs(inputs)
        for mine, its in zip(ours(*given), theirs(*given), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
        nodes = [node for node in ours.__self__.graph.nodes if "mirage_formal" in str(node.target)]
        assert not [node for node in theirs.__self__.graph.nodes if "mirage_formal" in str(node.target)]
        counts.append(len(nodes))
        return times[len(counts) - 1]

    monkeypatch.setattr(backend, "_is_timed", lambda inputs: True)
    monkeypatch.setattr(profitability, "time_interleaved", compared)
    options = {"rest": "eager", "workers": 1, "time_limit": 600, "out": place}
    found = torch.compile(model, backend=backend.mirage_formal, options=options, fullgraph=True)(x)
    torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
    report = backend.REPORTS[-1]
    assert isinstance(report, ModuleReport)
    return report, counts


def test_what_is_faster_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report, counts = compiled(monkeypatch, tmp_path, [TimedPair(1.0, 2.0), TimedPair(1.0, 2.0), TimedPair(2.0, 3.0)])
    assert counts == [1, 1, 2]
    assert [region.kept for region in report.regions] == ["", ""]
    assert "measured: 1.0 us, without it 2.0 us" in str(report)


def test_a_slower_region_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report, counts = compiled(monkeypatch, tmp_path, [TimedPair(2.0, 1.0), TimedPair(1.0, 2.0), TimedPair(2.0, 3.0)])
    assert counts == [1, 1, 1]
    assert [bool(region.kept) for region in report.regions] == [True, False]


def test_a_graph_that_is_slower_with_all_that_is_faster_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone = [TimedPair(1.0, 2.0), TimedPair(1.0, 2.5)]
    report, counts = compiled(monkeypatch, tmp_path, [*alone, TimedPair(3.0, 3.01), TimedPair(2.5, 3.02)])
    assert counts == [1, 1, 2, 1]
    kept = {region.others_us: region.kept for region in report.regions}
    assert "the whole graph is faster there, as measured: 3.0 us" in kept[2.0]  # the one that gained least alone
    assert not kept[2.5]
    assert "the whole, measured: 2.5 us, without operators 3.0 us" in str(report)


def test_a_graph_that_is_slower_with_any(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    alone = [TimedPair(1.0, 2.0), TimedPair(1.0, 2.5)]
    report, counts = compiled(monkeypatch, tmp_path, [*alone, TimedPair(3.0, 3.01), TimedPair(3.2, 3.01)])
    assert counts == [1, 1, 2, 1]
    assert all("the whole graph is faster" in region.kept for region in report.regions)


class One(Two):
    """One region."""

    def forward(self, x: Any) -> Any:
        """The region."""
        return torch.relu(self.first(self.norm(x))) * 2


@pytest.mark.parametrize("theirs", [2.0, 0.5])
def test_a_graph_of_one_region_is_timed_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, theirs: float) -> None:
    report, counts = compiled(monkeypatch, tmp_path, [TimedPair(1.0, theirs)], One)
    assert counts == [1]
    (row,) = report.regions
    assert (row.measured_us, row.others_us) == (1.0, theirs)
    assert bool(row.kept) == (theirs < 1)


def test_what_cannot_be_timed_is_decided_by_estimates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report, _ = compiled(monkeypatch, tmp_path, [None, None, None])
    assert [region.kept for region in report.regions] == ["", ""]
    assert all(region.measured_us is None for region in report.regions)


class Cached(Two):
    """A region behind a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 32))

    def forward(self, x: Any) -> Any:
        """The region, of what is in the buffer then."""
        self.cache.index_copy_(0, torch.tensor([2]), x[:1])
        return torch.relu(self.first(self.norm(self.cache))) * 2


@pytest.mark.parametrize("theirs", [2.0, 0.5])
@pytest.mark.parametrize(("mode", "again"), [(None, 0), ("max-autotune-no-cudagraphs", 0), ("reduce-overhead", 1)])
def test_the_compilation_that_was_timed_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, theirs: float, mode: str | None, again: int
) -> None:
    """By Inductor, on the CPU: what is timed is compiled, with operators in both ways; again only where it differs."""
    from torch._inductor import compile_fx as inductor

    model, x = Cached().requires_grad_(False), torch.randn(4, 32)
    if not can_compile([x]):
        pytest.skip("there is no compiler of C++")
    torch._dynamo.reset()
    made: list[tuple[bool, bool]] = []
    known: list[Any] = []
    real = inductor.compile_fx

    def counted(module: Any, inputs: Any, **more: Any) -> Any:
        if not any(module is one for one in known):  # it calls itself for each of its options
            known.append(module)
            ours = any("mirage_formal" in str(node.target) for node in module.graph.nodes)
            made.append((ours, "combo_kernels" in (more["config_patches"] or {})))
        return real(module, inputs, **more)

    monkeypatch.setattr(inductor, "compile_fx", counted)
    monkeypatch.setattr(backend, "_is_timed", lambda inputs: True)
    monkeypatch.setattr(profitability, "time_interleaved", lambda ours, others, inputs: TimedPair(1.0, theirs))
    options = {"workers": 1, "time_limit": 600, "out": tmp_path, "mode": mode}
    call = torch.compile(model, backend=backend.mirage_formal, options=options, fullgraph=True)
    want = copy.deepcopy(model)
    for turn in range(3):
        given = x * (turn + 1)
        torch.testing.assert_close(call(given), want(given), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(model.cache, want.cache)
    assert sorted(made[:3]) == [(False, False), (True, False), (True, True)]
    assert made[3:] == [(theirs > 1, theirs > 1)] * again


@pytest.mark.parametrize("us", [[3.0, 2.0, 2.5], [3.0, 3.0, 4.0], [3.0, None, 1.0]])
def test_the_fastest_way_to_compile_a_graph(monkeypatch: pytest.MonkeyPatch, us: list[float | None]) -> None:
    """None is a way in which it cannot be compiled."""
    graph = torch.fx.symbolic_trace(lambda x: (x + 1) * 2)
    calls = [None if one is None else (lambda x, one=one: one) for one in us]

    def way(number: int) -> Any:
        def compile(module: Any, inputs: Any) -> Any:
            if calls[number] is None:
                raise RuntimeError("not in this way")
            return calls[number]

        return compile

    def compared(ours: Any, theirs: Any, inputs: Any) -> TimedPair:
        return TimedPair(ours(inputs), theirs(inputs))

    monkeypatch.setattr(profitability, "time_interleaved", compared)
    monkeypatch.setattr(profitability, "have_equal_results", lambda ours, theirs, inputs: True)
    found, number = profitability._fastest_compilation(graph, [torch.zeros(2)], [way(n) for n in range(len(us))])
    assert number == us.index(min(one for one in us if one is not None))
    assert found is calls[number]
    single = torch.fx.symbolic_trace(lambda x: x.split(2)[0])  # a method; what is taken of its results is no node
    assert profitability._fastest_compilation(single, [torch.zeros(2)], [way(n) for n in range(len(us))]) == (
        calls[0],
        0,
    )


def test_a_faster_way_that_computes_something_else_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = torch.fx.symbolic_trace(lambda x: ((x + 1) * 2,))
    monkeypatch.setattr(profitability, "time_interleaved", lambda ours, theirs, inputs: TimedPair(1.0, 2.0))

    def number(call: Any) -> int:
        return profitability._fastest_compilation(
            graph, [torch.zeros(8)], [profitability.eager_compile, lambda module, inputs: call]
        )[1]

    def written(x: Any) -> Any:
        made = graph(x)
        x.add_(1)
        return made

    assert number(lambda x: (2 * (x + 1),)) == 1
    assert number(lambda x: (2 * x + 3,)) == 0
    assert number(lambda x: (*graph(x), x)) == 0
    assert number(lambda x: (graph(x)[0].double(),)) == 0
    assert number(written) == 0
    assert number(lambda x: (x.view(3),)) == 0  # a call that fails


def test_tensors_that_share_memory_are_compiled_again() -> None:
    x = torch.randn(4, 4)
    assert backend._have_separate_memory([x, torch.randn(2), 3])
    assert not backend._have_separate_memory([x, x[1:]])
    assert not backend._have_separate_memory([x, x.t()])


def test_a_tensor_whose_strides_are_to_be_0() -> None:
    row = torch.randn(1, 6)
    found = _lay_out(row.repeat(4, 1), (0, 1))
    assert found.stride() == (0, 1)
    assert torch.equal(found, row.expand(4, 6))


def test_constants_lie_where_the_arguments_do() -> None:
    mask = torch.ones(2, 2, dtype=torch.bool)
    meta = torch.device("meta")
    assert constant_on(mask, {meta}).device == meta
    assert constant_on(mask, {meta, torch.device("cpu")}).device.type == "cpu"
    assert constant_on(torch.tensor(2.0), {meta}).device.type == "cpu"


def test_candidates_of_modules_that_lie_on_no_gpu_are_not_timed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []
    real = vars(region_search)["search_into_store"]

    def kept(program: Any, given: Any) -> Any:
        asked.append(given["measure"])
        return real(program, given)

    monkeypatch.setattr(region_search, "search_into_store", kept)
    compiled(monkeypatch, tmp_path, [None, None, None])
    assert asked
    assert set(asked) == {0}


def test_drawn_inputs_are_like_those_that_are_given() -> None:
    given = [torch.empty(3, 4)[:, ::2], torch.empty(1, 4).expand(3, 4), torch.zeros(2, dtype=torch.int64), 7]
    made = draw_inputs([*given, torch.zeros(2, dtype=torch.bool)])
    assert [x.stride() for x in made[:2]] == [x.stride() for x in given[:2]]
    assert torch.equal(made[1][0], made[1][2])
    assert made[2].tolist() == [0, 0]
    assert made[3] == 7
    assert made[4].all()
