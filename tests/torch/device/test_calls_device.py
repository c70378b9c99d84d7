"""Calls of operators on a real GPU: streams, memory, capture, parameters, strange inputs."""

from __future__ import annotations

import threading
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

from mirage_formal.device.tensors import TensorError  # noqa: E402
from mirage_formal.support.errors import DTypeError, MirageError, ShapeError  # noqa: E402
from mirage_formal.torch.modules.custom_operators import TorchOperator  # noqa: E402
from mirage_formal.torch.modules.eager_execution import DTYPES  # noqa: E402
from tests.kit.torch import examples as kit  # noqa: E402
from tests.kit.torch.examples import operators  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # what Inductor and Triton warn about is theirs
    pytest.mark.skipif(kit.DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"),
]
on_gpu = pytest.mark.skipif(kit.DEVICE != "cuda", reason="needs a GPU")


def given(device: str = kit.DEVICE, seed: int = 0) -> tuple[TorchOperator, list[Any], Any]:
    """An operator, inputs as it declares them, and what torch computes of them."""
    operator = operators(kit.optimized("mlp")[1])[0]
    made = []
    generator = torch.Generator().manual_seed(seed)
    for item in operator.result.optimized.program.inputs:
        values = torch.randn(item.tensor.shape, generator=generator) / 8
        place = torch.empty_strided(item.tensor.shape, item.strides, dtype=DTYPES[item.tensor.dtype], device=device)
        made.append(place.copy_(values))
    with torch.no_grad():
        return operator, made, operator.eager(*made)


def test_parameters_without_gradients() -> None:
    operator, inputs, wanted = given()
    parameters = [torch.nn.Parameter(x) for x in inputs]
    with torch.no_grad():
        found = operator(*parameters)
    kit.close(found, wanted)
    assert not found.requires_grad
    with torch.inference_mode():
        kit.close(operator(*parameters), wanted)
        kit.close(operator(*[x.clone() for x in inputs]), wanted)


def test_a_gradient_that_is_needed() -> None:
    operator, inputs, _ = given()
    pairs = []
    for call in (operator.eager, operator):
        own = [x.clone().requires_grad_() for x in inputs]
        y = call(*own)
        assert y.requires_grad
        pairs.append(torch.autograd.grad(y.float().square().sum(), own))
    for found, wanted in zip(pairs[1], pairs[0], strict=True):
        kit.close(found, wanted)


def test_inputs_that_lie_otherwise() -> None:
    operator, inputs, wanted = given()
    for number, x in enumerate(inputs):
        memory = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)
        odd = memory[1:].view(x.shape).copy_(x)  # at an address that no kernel reads 16 bytes of at once
        others = [odd]
        if x.dim() > 1:
            others.append(x.mT.contiguous().mT)
            wide = torch.empty(*x.shape[:-1], 2 * x.shape[-1], dtype=x.dtype, device=x.device)
            others.append(wide[..., ::2].copy_(x))
        for other in others:
            kit.close(operator(*inputs[:number], other, *inputs[number + 1 :]), wanted)
    for number, x in enumerate(inputs):
        row = x.flatten()[:1].expand(x.shape)  # all strides are 0
        same = row.clone(memory_format=torch.contiguous_format)
        mine = operator(*inputs[:number], row, *inputs[number + 1 :])
        with torch.no_grad():
            kit.close(mine, operator.eager(*inputs[:number], same, *inputs[number + 1 :]))


def test_mistakes_name_the_input() -> None:
    operator, inputs, _ = given()
    name = operator.result.optimized.program.inputs[0].name
    with pytest.raises(ShapeError, match=name):
        operator(inputs[0][:, :0], *inputs[1:])
    with pytest.raises(DTypeError, match=name):
        operator(inputs[0].float(), *inputs[1:])
    if kit.DEVICE == "cuda":
        with pytest.raises((TensorError, MirageError), match=r"one device|GPU 0|on the CPU"):
            operator(inputs[0].cpu(), *inputs[1:])


@on_gpu
def test_a_call_allocates_its_outputs_and_nothing_else() -> None:
    operator, inputs, _ = given()
    out = operator(*inputs)
    count = 1 if isinstance(out, torch.Tensor) else len(out)
    torch.cuda.synchronize()

    def allocations() -> int:
        return int(torch.cuda.memory_stats()["allocation.all.allocated"])

    before, reserved, used = allocations(), torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    for _ in range(10):
        out = operator(*inputs)
    torch.cuda.synchronize()
    assert allocations() - before == 10 * count
    assert torch.cuda.memory_reserved() == reserved
    assert torch.cuda.memory_allocated() <= used


@on_gpu
def test_a_side_stream() -> None:
    """The call waits for what its own stream did before, and for nothing else; the default stream is left alone."""
    operator, inputs, wanted = given()
    operator(*inputs)
    good = [x.clone() for x in inputs]
    for x in inputs:
        x.zero_()
    side, torch_default = torch.cuda.Stream(), torch.cuda.default_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(400_000_000)
        for x, y in zip(inputs, good, strict=True):
            x.copy_(y)
        found = operator(*inputs)
        assert not side.query(), "the call waited"
        assert torch_default.query(), "work on the default stream"
    side.synchronize()
    kit.close(found, wanted)


@on_gpu
def test_many_streams_and_a_thread() -> None:
    operator, _, _ = given()
    sets = [given(seed=seed)[1:] for seed in range(4)]
    streams = [torch.cuda.Stream() for _ in sets]
    torch.cuda.synchronize()
    results = []
    for _ in range(10):
        for stream, (inputs, wanted) in zip(streams, sets, strict=True):
            with torch.cuda.stream(stream):
                results.append((operator(*inputs), wanted))
    torch.cuda.synchronize()
    for found, wanted in results:
        kit.close(found, wanted)
    from_thread: list[Any] = []
    inputs, wanted = sets[0]
    thread = threading.Thread(target=lambda: from_thread.append(operator(*inputs)))
    thread.start()
    thread.join()
    kit.close(from_thread[0], wanted)


@on_gpu
def test_captured_with_inputs_that_change() -> None:
    operator, inputs, _ = given()
    operator(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = operator(*inputs)
    for seed in (1, 2, 3):
        _, other, wanted = given(seed=seed)
        for x, y in zip(inputs, other, strict=True):
            x.copy_(y)
        found.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        kit.close(found, wanted)
