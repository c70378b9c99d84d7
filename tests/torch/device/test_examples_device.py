"""The examples of modules on a real GPU: equal to eager, through torch.compile, under capture, with gradients.

Run by `python -m benchmarks.torch_device`; the kit says which store they use.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed: make test-torch installs it")

import mirage_formal as mf  # noqa: E402
from mirage_formal.torch.modules import backend  # noqa: E402
from tests.kit.torch import examples as kit  # noqa: E402
from tests.kit.torch.examples import checked, operators  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("default"),  # what Inductor and Triton warn about is theirs
    pytest.mark.skipif(kit.DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"),
]
on_gpu = pytest.mark.skipif(kit.DEVICE != "cuda", reason="needs a GPU")
CASES = [(name, "float16") for name in kit.EXAMPLES] + [(name, "bfloat16") for name in ("llama_layer", "mlp")]
each = pytest.mark.parametrize("name", kit.EXAMPLES)


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=["-".join(case) for case in CASES])
def test_an_optimized_module_is_the_module(name: str, dtype: str) -> None:
    module, optimized, args = kit.optimized(name, dtype)
    report = optimized.mirage_report()
    assert any(not region.kept for region in report.regions), str(report)
    with torch.no_grad():
        for _ in range(3):
            kit.close(optimized(*args), module(*args), dtype)
            args = tuple(kit.fresh(x) for x in args)
    for mine, its in zip(optimized.buffers(), module.buffers(), strict=True):  # caches are written alike
        kit.close(mine, its, dtype)


@each
def test_compiled_by_the_backend(name: str) -> None:
    module, _, args = kit.optimized(name)
    torch._dynamo.reset()
    rest = "inductor" if kit.DEVICE == "cuda" else "eager"
    twin = copy.deepcopy(module)
    options = {**kit.OPTIONS, "rest": rest, "compare": False}
    compiled = torch.compile(module, backend=backend.mirage_formal, fullgraph=True, options=options)
    with torch.no_grad(), kit.stored():
        for _ in range(2):
            kit.close(compiled(*args), twin(*args))
    report: Any = backend.REPORTS[-1]
    assert any(not region.kept for region in report.regions)


@on_gpu
def test_the_backend_times_what_it_replaces() -> None:
    module, _, args = kit.optimized("mlp")
    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend.mirage_formal, fullgraph=True, options=kit.OPTIONS)
    with torch.no_grad(), kit.stored():
        kit.close(compiled(*args), module(*args))
    report: Any = backend.REPORTS[-1]
    (row,) = report.regions
    assert row.measured_us is not None
    assert row.others_us is not None
    assert bool(row.kept) or row.measured_us < row.others_us


@each
def test_torch_finds_nothing_wrong_with_the_operators(name: str) -> None:
    with torch.device(kit.DEVICE):
        for operator in operators(kit.optimized(name)[1]):
            checked(operator)


@on_gpu
@each
def test_captured_and_replayed(name: str) -> None:
    module, optimized, args = kit.optimized(name)
    args = tuple(x.clone() for x in args)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        optimized(*args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        found = optimized(*args)
    for _ in range(3):
        for x in args:
            x.copy_(kit.fresh(x))
        found.fill_(float("nan"))
        graph.replay()
        with torch.no_grad():
            kit.close(found, module(*args))


@pytest.mark.parametrize("name", ["mlp", "lora_linear", "ngpt_layer", "training_step"])
def test_gradients_are_those_of_eager(name: str) -> None:
    own, args = kit.example(name, "float16")
    with kit.stored():
        optimized = mf.optimize(copy.deepcopy(own), args, **kit.OPTIONS)
    args = tuple(x.clone().requires_grad_() for x in args)
    weights = torch.randn_like(args[0])[..., :1].float()  # the squares of a vector of length 1 have a constant sum
    pairs = []
    for module in (own, optimized):
        y = module(*args)
        wanted = [p for p in module.parameters() if p.requires_grad]
        pairs.append(torch.autograd.grad((y.float() * weights).sum(), [*args, *wanted]))
    for found, wanted_ in zip(pairs[1], pairs[0], strict=True):
        kit.close(found, wanted_)
