"""Two real GPUs: calls, streams, capture, modules that move, and the back end, while another GPU is the current one."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

from mirage_formal.device.tensors import TensorError  # noqa: E402
from mirage_formal.torch.modules import backend  # noqa: E402
from mirage_formal.torch.modules.module_report import FallbackWarning  # noqa: E402
from tests.kit.torch import examples as kit  # noqa: E402
from tests.kit.torch.examples import operators  # noqa: E402

GPUS = ("cuda:0", "cuda:1")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # what Inductor and Triton warn about is theirs
    pytest.mark.skipif(torch.cuda.device_count() < len(GPUS), reason="needs two GPUs"),
]


@pytest.fixture(autouse=True)
def _the_current_gpu_stays() -> Iterator[None]:
    """Whatever a test does with the other GPU, torch and the driver name the same one as before."""
    yield
    found = torch.cuda.current_device()
    torch.cuda.set_device(0)
    assert found == 0


@pytest.fixture(autouse=True)
def _no_call_is_left_to_the_module() -> Iterator[None]:
    """What falls back to the module says so, and here nothing should."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        yield


def given(device: str, seed: int = 0) -> tuple[Any, tuple[Any, ...], Any]:
    """A module that is optimized, arguments on a GPU, and what the module computes of them there."""
    module, optimized, args = kit.optimized("mlp")
    torch.manual_seed(seed)
    there = tuple(torch.randn(x.shape, dtype=x.dtype).to(device) for x in args)
    with torch.no_grad():
        return optimized, there, copy.deepcopy(module).to(device)(*there)


def test_a_module_moves_from_one_to_the_other_and_back() -> None:
    moved = copy.deepcopy(given(GPUS[0])[0])
    for device in (*reversed(GPUS), *GPUS):
        _, args, wanted = given(device)
        moved.to(device)
        assert torch.cuda.current_device() == 0
        with torch.no_grad():
            found = moved(*args)
        assert found.device == torch.device(device)
        kit.close(found, wanted)
        assert torch.cuda.current_device() == 0


def test_an_operator_serves_both_by_turns_and_from_threads() -> None:
    """Modules that are copies share an operator, which has kernels and a workspace on each GPU."""
    (operator, *_) = operators(kit.optimized("mlp")[1])
    weights = {}
    for device in GPUS:
        optimized, args, wanted = given(device)
        weights[device] = (copy.deepcopy(optimized).to(device), args, wanted)
    found: dict[str, list[Any]] = {device: [] for device in GPUS}

    def call(device: str) -> None:
        module, args, _ = weights[device]
        with torch.no_grad():
            found[device].extend(module(*args) for _ in range(20))

    for _ in range(3):
        for device in GPUS:
            call(device)
    threads = [threading.Thread(target=call, args=(device,)) for device in GPUS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for device in GPUS:
        torch.cuda.synchronize(device)
        assert len(found[device]) == 80
        for one in found[device]:
            assert one.device == torch.device(device)
            kit.close(one, weights[device][2])
    inputs = operator.result.optimized.program.inputs
    both = [torch.zeros(x.tensor.shape, dtype=torch.float16, device=GPUS[i % 2]) for i, x in enumerate(inputs)]
    with pytest.raises(TensorError, match="one device"):
        operator(*both)


def test_a_side_stream_of_the_other_waits_for_nothing_of_the_current() -> None:
    optimized, args, wanted = given(GPUS[1])
    moved = copy.deepcopy(optimized).to(GPUS[1])
    with torch.no_grad():
        moved(*args)
        good = [x.clone() for x in args]
        for x in args:
            x.zero_()
        for device in GPUS:
            torch.cuda.synchronize(device)
        torch.cuda._sleep(4_000_000_000)  # on the current GPU
        side = torch.cuda.Stream(device=GPUS[1])
        with torch.cuda.stream(side):
            torch.cuda._sleep(400_000_000)
            for x, y in zip(args, good, strict=True):
                x.copy_(y)
            found = moved(*args)
            assert not side.query(), "the call waited"
        side.synchronize()
        assert not torch.cuda.current_stream(GPUS[0]).query(), "the current GPU was waited for"
    kit.close(found, wanted)
    torch.cuda.synchronize()


def test_captured_on_the_other() -> None:
    optimized, args, _ = given(GPUS[1])
    moved = copy.deepcopy(optimized).to(GPUS[1])
    with torch.no_grad(), torch.cuda.device(GPUS[1]):
        moved(*args)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Without a stream torch captures on one that it keeps for the process, of the GPU that was current first.
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            found = moved(*args)
    for seed in (1, 2, 3):
        _, others, wanted = given(GPUS[1], seed)
        for x, y in zip(args, others, strict=True):
            x.copy_(y)
        found.fill_(float("nan"))
        with torch.cuda.device(GPUS[1]):
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
        kit.close(found, wanted)


@pytest.mark.parametrize("device", GPUS)
def test_a_moved_module_is_one_graph_of_dynamo(device: str) -> None:
    optimized, args, wanted = given(device)
    moved = copy.deepcopy(optimized).to(device)
    torch._dynamo.reset()
    with torch.no_grad():
        kit.close(torch.compile(moved, backend="aot_eager", fullgraph=True)(*args), wanted)
        (operator, *_) = operators(optimized)
        exported = torch.export.export(moved, args)
    assert operator.overload in {node.target for node in exported.graph.nodes}


@pytest.mark.parametrize("compare", [False, True])
def test_compiled_by_the_backend_on_the_other(compare: bool) -> None:
    """What is measured there is measured on the GPU that its tensors are on."""
    module, _, _ = kit.optimized("mlp")
    _, args, wanted = given(GPUS[1])
    torch._dynamo.reset()
    there = copy.deepcopy(module).to(GPUS[1])
    options = {**kit.OPTIONS, "compare": compare}
    compiled = torch.compile(there, backend=backend.mirage_formal, fullgraph=True, options=options)
    before = torch.cuda.memory_allocated(GPUS[0])
    with torch.no_grad(), kit.stored():
        for _ in range(2):
            found = compiled(*args)
            assert found.device == torch.device(GPUS[1])
            kit.close(found, wanted)
    assert torch.cuda.memory_allocated(GPUS[0]) <= before
    report: Any = backend.REPORTS[-1]
    (row,) = report.regions
    assert (row.measured_us is not None) == compare
    if compare:
        assert row.measured_us > 0.5, "an empty graph was timed"  # no kernel takes less
