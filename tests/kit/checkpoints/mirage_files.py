"""Checkpoints of Mirage for tests: small workloads, one file written by hand, and an evaluator of such files."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.graph import KernelGraph
from tests.kit.graphs import workloads

SMALL = {
    "rmsnorm": (workloads.rmsnorm(2, 16, 24), workloads.rmsnorm_fused(2, 16, 24, grid=3, loop=4)),
    "attention_split": (
        workloads.attention(2, 4, 4, 16, 4),
        workloads.attention_split(2, 4, 4, 16, 4, split=2, loop=2, rows=2),
    ),
    "attention_one": (workloads.attention(2, 4, 4, 16, 4), workloads.attention_one(2, 4, 4, 16, 4, rows=2, loop=4)),
    "lora": (workloads.lora(4, 8, 12, 2), workloads.lora_fused(4, 8, 12, 2, grid=3, loop=4)),
    "gated_mlp": (workloads.gated_mlp(4, 8, 12), workloads.gated_mlp_fused(4, 8, 12, grid=3, loop=4, rows=2)),
    "ntrans": (workloads.ntrans(4, 8), workloads.ntrans_fused(4, 8, grid=4)),
}


def renamed(graph: KernelGraph) -> KernelGraph:
    return replace(graph, inputs=tuple(replace(item, name=f"X{i}") for i, item in enumerate(graph.inputs)))


def arrays_for(graph: KernelGraph) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.uniform(0.5, 1.5, item.tensor.shape) for item in graph.inputs]


# --- an evaluator of the file itself, block by block and iteration by iteration, that knows nothing of our graphs ---


def _silu(x: NDArray[Any]) -> NDArray[Any]:
    return x / (1 + np.exp(-x))


UNARY: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "exp": np.exp,
    "sqrt": np.sqrt,
    "square": lambda x: x * x,
    "silu": _silu,
    "relu": lambda x: np.maximum(x, 0),
}
UNARY["sigmoid"] = lambda x: 1 / (1 + np.exp(-x))
UNARY["log"] = np.log
UNARY["gelu"] = np.vectorize(lambda v: v * (1 + math.erf(v / math.sqrt(2))) / 2, otypes=[float])
BINARY: dict[str, Callable[..., NDArray[Any]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "matmul": np.matmul,
}


def _plain(name: str, args: Sequence[NDArray[Any]], dimx: int | None) -> NDArray[Any]:
    """An operator without state; ``name`` without its level and "_op"."""
    if name in UNARY:
        return UNARY[name](args[0])
    if name in BINARY:
        return BINARY[name](*args)
    if name == "rms_norm":
        return args[0] / np.sqrt(np.mean(args[0] ** 2, axis=-1, keepdims=True))
    if found := re.fullmatch(r"reduction_(\d)", name):
        return args[0].sum(axis=int(found[1]), keepdims=True)
    if found := re.fullmatch(r"reduction_(\d)_to_dimx", name):
        assert dimx is not None
        return _fold(args[0], int(found[1]), dimx)
    if found := re.fullmatch(r"concat_(\d)", name):
        return np.concatenate(args, axis=int(found[1]))
    raise AssertionError(name)


def _fold(x: NDArray[Any], dim: int, dimx: int) -> NDArray[Any]:
    """result[j] = sum over k of x[k * dimx + j]"""
    return _total([np.take(x, range(k, k + dimx), axis=dim) for k in range(0, x.shape[dim], dimx)])


def _total(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.asarray(sum(parts))


def _accumulate(name: str, values: Sequence[NDArray[Any]], dimx: int) -> NDArray[Any]:
    total = _total(values)
    count = len(values) * values[0].shape[-1]
    results: dict[str, Callable[[], NDArray[Any]]] = {
        "nored": lambda: total,
        "red_ld_sum": lambda: total.sum(-1, keepdims=True),
        "red_ld_mean": lambda: total.sum(-1, keepdims=True) / count,
        "red_ld_rms": lambda: np.sqrt(_total([(v**2).sum(-1, keepdims=True) for v in values]) / count),
        "redtox_ld_sum": lambda: _fold(total, total.ndim - 1, dimx),
    }
    return results[name]()


def _cut(x: NDArray[Any], dim: int, pieces: int, index: int) -> NDArray[Any]:
    if dim < 0:
        return x
    size = x.shape[dim] // pieces
    return np.take(x, range(index * size, (index + 1) * size), axis=dim)


def _one_block(block: dict[str, Any], device: dict[int, NDArray[Any]], place: Sequence[int]) -> dict[int, NDArray[Any]]:
    """What one block writes: its results by the guid of the device tensor."""
    loops, dimx = block["forloop_range"], block["reduction_dimx"]
    inside: list[dict[int, NDArray[Any]]] = [{} for _ in range(loops)]  # tensors of each iteration
    after: dict[int, NDArray[Any]] = {}
    written: dict[int, NDArray[Any]] = {}
    for op in block["operators"]:
        name = op["op_type"].removeprefix("tb_").removesuffix("_op")
        guids = [t["guid"] for t in op["input_tensors"]]
        result: Any = op["output_tensors"][0]["guid"] if op["output_tensors"] else None
        if name == "input":
            slab = device[op["dtensor"]["guid"]]
            for axis, index in zip("xyz", place, strict=True):
                slab = _cut(slab, op["input_map"][axis], block["grid_dim"][axis], index)
            for i in range(loops):
                inside[i][result] = _cut(slab, op["forloop_dim"], loops, i)
        elif name == "output":
            written[op["dtensor"]["guid"]] = after[guids[0]]
        elif found := re.fullmatch(r"(?:forloop_)?accum_(\w+)", name):
            after[result] = _accumulate(found[1], [inside[i][guids[0]] for i in range(loops)], dimx)
        elif guids[0] in after:
            after[result] = _plain(name, [after[g] for g in guids], dimx)
        else:
            for i in range(loops):
                inside[i][result] = _plain(name, [inside[i][g] for g in guids], dimx)
    return written


def _customized(op: dict[str, Any], device: dict[int, NDArray[Any]]) -> None:
    block = op["bgraph"]
    grid = [block["grid_dim"][axis] for axis in "xyz"]
    for tensor in op["output_tensors"]:
        device[tensor["guid"]] = np.full(tensor["dim"][: tensor["num_dims"]], np.nan)
    maps = {o["dtensor"]["guid"]: o["output_map"] for o in block["operators"] if o["op_type"] == "tb_output_op"}
    for place in product(*(range(extent) for extent in grid)):
        for guid, value in _one_block(block, device, place).items():
            start = [0] * value.ndim
            for axis, extent, index in zip("xyz", grid, place, strict=True):
                if (dim := maps[guid][axis]) >= 0:
                    start[dim] = start[dim] * extent + index
            where = tuple(slice(s * n, (s + 1) * n) for s, n in zip(start, value.shape, strict=True))
            device[guid][where] = value


def evaluate(graph: list[dict[str, Any]], arrays: Iterable[NDArray[Any]]) -> list[NDArray[Any]]:
    """Outputs of one graph of a file."""
    device: dict[int, NDArray[Any]] = {}
    outputs: list[NDArray[Any]] = []
    given_arrays = iter(arrays)
    for op in graph:
        name = op["op_type"].removeprefix("kn_").removesuffix("_op")
        guids = [t["guid"] for t in op["input_tensors"]]
        if name == "input":
            device[op["output_tensors"][0]["guid"]] = next(given_arrays)
        elif name == "output":
            outputs.append(device[guids[0]])
        elif name == "customized":
            _customized(op, device)
        else:
            device[op["output_tensors"][0]["guid"]] = _plain(name, [device[g] for g in guids], None)
    return outputs


# --- the format as such, independent of our writer ---


def tensor(guid: int, *shape: int, code: int = 921, **shared: object) -> dict[str, Any]:
    dim = [*shape, *[0] * (4 - len(shape))]
    made = {"data_type": code, "dim": dim, "guid": guid, "layout": "DmemRowMajor", "num_dims": len(shape)}
    return made | shared


def grid_map(x: int = -1, y: int = -1, z: int = -1) -> dict[str, int]:
    return {"x": x, "y": y, "z": z}


def hand_written(accumulator: str = "tb_accum_nored_op") -> list[dict[str, Any]]:
    def s(guid: int, *shape: int, after: bool = False) -> dict[str, Any]:
        return tensor(guid, *shape, after_accum=after, smem_offset=0)

    operators = [
        {
            "op_type": "tb_input_op",
            "input_tensors": [],
            "output_tensors": [s(1, 2, 2)],
            "dtensor": tensor(7, 4, 12),
            "input_map": grid_map(1, 0),
            "forloop_dim": 1,
        },
        {"op_type": "tb_exp_op", "input_tensors": [s(1, 2, 2)], "output_tensors": [s(2, 2, 2)]},
        {"op_type": accumulator, "input_tensors": [s(2, 2, 2)], "output_tensors": [s(3, 2, 2, after=True)]},
        {
            "op_type": "tb_output_op",
            "input_tensors": [s(3, 2, 2, after=True)],
            "output_tensors": [],
            "dtensor": tensor(8, 4, 6),
            "output_map": grid_map(1, 0),
        },
    ]
    block = {
        "graph_level": "thread_block_graph",
        "grid_dim": {"x": 3, "y": 2, "z": 1},
        "block_dim": {"x": 128, "y": 1, "z": 1},
        "forloop_range": 2,
        "reduction_dimx": 64,
        "smem_offset": 0,
        "operators": operators,
    }
    return [
        {
            "op_type": "kn_input_op",
            "input_tensors": [],
            "output_tensors": [tensor(7, 4, 12)],
            "input_strides": [12, 1],
            "input_map": grid_map(),
        },
        {
            "op_type": "kn_customized_op",
            "input_tensors": [tensor(7, 4, 12)],
            "output_tensors": [tensor(8, 4, 6)],
            "bgraph": block,
        },
        {"op_type": "kn_square_op", "input_tensors": [tensor(8, 4, 6)], "output_tensors": [tensor(9, 4, 6)]},
    ]
