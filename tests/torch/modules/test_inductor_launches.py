"""What Inductor puts in one launch: nodes by levels that are counted from the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

from mirage_formal.torch.modules.inductor import (  # noqa: E402
    BOUNDED,
    inductor_compilers,
    late_combo_kernels,
    schedule_late,
)


@st.composite
def _graphs(draw: st.DrawFn) -> list[set[int]]:
    """For each node the earlier ones that it needs."""
    count = draw(st.integers(1, 12))
    return [draw(st.sets(st.integers(0, n - 1), max_size=3)) if n else set() for n in range(count)]


@given(_graphs())
def test_every_node_is_before_those_that_need_it_and_no_earlier_than_that(needs: list[set[int]]) -> None:
    early: list[int] = []
    for needed in needs:
        early.append(max((early[n] + 1 for n in needed), default=0))
    levels = [[n for n, at in enumerate(early) if at == level] for level in range(max(early) + 1)]
    found = schedule_late(levels, lambda node: needs[node])
    place = {node: level for level, nodes in enumerate(found) for node in nodes}
    assert sorted(node for nodes in found for node in nodes) == list(range(len(needs)))
    assert len(found) == len(levels)
    for node in range(len(needs)):
        users = [place[n] for n, needed in enumerate(needs) if node in needed]
        assert place[node] == min(users, default=len(levels)) - 1


@pytest.fixture
def unbounded() -> Iterator[None]:
    """Inductor groups by levels, as versions do that know no bound for the memory that combo kernels take."""
    from torch._inductor import config

    with config.patch({name: None for name in BOUNDED if hasattr(config, name)}):
        yield


class Step(torch.nn.Module):  # type: ignore[misc]
    """A product, which is written, behind it one that reads what was written and a mask."""

    def forward(self, x: Any, weight: Any, cache: Any, place: Any, mask: Any) -> Any:
        """The second product."""
        return (torch.mm(cache.index_copy_(0, place, torch.mm(x, weight)), mask.to(x.dtype)),)


@pytest.mark.usefixtures("unbounded")
def test_a_conversion_is_where_something_is_written_for_the_same_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """By Inductor's own scheduler, on the CPU; there it makes no kernels of what it groups."""
    from torch._inductor import compile_fx, config, scheduler

    combo = scheduler.ForeachKernelSchedulerNode
    seen: list[list[set[str]]] = []

    def grouped(schedule: Any) -> list[Any]:
        levels = schedule._topological_sort_nodes()
        seen.append([{name for node in level for name in node.get_buffer_names()} for level in levels])
        return []

    monkeypatch.setattr(combo, "group_algorithm_for_combo_kernels", grouped)
    inputs = [torch.randn(1, 64), torch.randn(64, 64), torch.zeros(8, 64), torch.tensor([3]), torch.ones(64, 64) > 0]
    found = []
    for way in (nullcontext, late_combo_kernels):
        torch._dynamo.reset()
        with torch.no_grad(), config.patch({"combo_kernels": True, "fx_graph_cache": False}), way():
            found.append(compile_fx.compile_fx(torch.fx.symbolic_trace(Step()), inputs)(*inputs))
        assert combo.group_algorithm_for_combo_kernels is grouped
    torch.testing.assert_close(found[0], found[1])
    first, second = seen
    assert set.union(*first) == set.union(*second)
    assert len(first) == len(second)
    assert [len(level) for level in second] == [1, 2, 1]
    assert [len(level) for level in first] == [2, 1, 1]


@pytest.mark.usefixtures("unbounded")
def test_the_backend_groups_so_where_it_asks_for_combo_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx, scheduler

    combo = scheduler.ForeachKernelSchedulerNode
    own, seen = combo.group_algorithm_for_combo_kernels, []

    def seeing(module: Any, inputs: Any, config_patches: Any) -> Any:
        seen.append((config_patches is not None, combo.group_algorithm_for_combo_kernels is own))
        return module

    monkeypatch.setattr(compile_fx, "compile_fx", seeing)
    for way in inductor_compilers(None):
        way(torch.fx.symbolic_trace(Step()), [])
    assert seen == [(False, True), (True, False)]
    assert combo.group_algorithm_for_combo_kernels is own


def test_nothing_is_changed_where_memory_is_bounded() -> None:
    from torch._inductor import config, scheduler

    own = scheduler.ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels
    if not hasattr(config, BOUNDED[0]):
        pytest.skip("this version of torch does not know of it")
    with config.patch({BOUNDED[0]: 0.05}), late_combo_kernels():
        assert scheduler.ForeachKernelSchedulerNode.group_algorithm_for_combo_kernels is own
