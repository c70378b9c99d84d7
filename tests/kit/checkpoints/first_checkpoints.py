"""Checkpoints as the first published version of Mirage writes them, made here from what the format is.

No file of that version is kept here. These have its fields, its two programs at their published shapes, and the kinds
of kernels that its files have; `docs/bugs-found.md` has what was found for the files themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from tests.kit.checkpoints.mirage_files import grid_map, tensor

Record = dict[str, Any]
#: A load: place of the device tensor among the operands, its tile, its map, and the dim that the loop cuts.
Load = tuple[tuple[int, ...], Record, int]
#: An operator: name, operands by their places among loads and operators, and its tile.
Step = tuple[str, tuple[int, ...], tuple[int, ...]]
#: A saver: operand by its place, its tile, and the shape of the device tensor.
Save = tuple[int, tuple[int, ...], tuple[int, ...]]


class FirstGraph:
    """One graph under construction, a record for each operator."""

    def __init__(self, *shapes: tuple[int, ...]) -> None:
        self._guids = count(20_000)
        self.records: list[Record] = []
        self.inputs = [self._add("kn_input_op", [], shape) for shape in shapes]

    def _add(self, name: str, operands: Sequence[Record], *shapes: tuple[int, ...], **fields: object) -> Record:
        made = [tensor(next(self._guids), *shape) for shape in shapes]
        self.records.append({"op_type": name, "input_tensors": list(operands), "output_tensors": made, **fields})
        return made[0]

    def op(self, name: str, *operands: Record, shape: tuple[int, ...]) -> Record:
        return self._add(name, operands, shape)

    def kernel(
        self,
        operands: Sequence[Record],
        grid: tuple[int, int, int],
        loop: int,
        loads: Sequence[Load],
        steps: Sequence[Step],
        saves: Sequence[Save],
        omap: Record,
    ) -> list[Record]:
        """Adds a kernel with its plan, which says the same again; all savers have one map, as there."""
        tiles: list[Record] = []
        inner: list[Record] = []

        def tile(shape: tuple[int, ...]) -> Record:
            tiles.append(tensor(next(self._guids), *shape, smem_offset=0) | {"layout": "SmemRowMajor"})
            return tiles[-1]

        for operand, (shape, imap, fmap) in zip(operands, loads, strict=True):
            fields = {"dtensor": operand, "input_map": imap, "forloop_dim": fmap}
            inner.append({"op_type": "tb_input_op", "input_tensors": [], "output_tensors": [tile(shape)], **fields})
        for name, places, shape in steps:
            record: Record = {
                "op_type": name,
                "input_tensors": [tiles[n] for n in places],
                "output_tensors": [tile(shape)],
            }
            if name.startswith("tb_reduction"):
                record |= {"reduce_dim": int(name.split("_")[2]), "reduce_size": 64 if "dimx" in name else 1}
            if name.startswith("tb_concat"):
                record |= {"concat_dim": int(name.split("_")[2])}
            inner.append(record)
        made = [tensor(next(self._guids), *device) for _, _, device in saves]
        for device, (place, shape, _) in zip(made, saves, strict=True):
            fields = {"dtensor": device, "output_map": omap}
            own, read = tile(shape), tiles[place]
            inner.append({"op_type": "tb_output_op", "input_tensors": [read], "output_tensors": [own], **fields})
        sizes = {"grid_dim": dict(zip("xyz", grid, strict=True)), "block_dim": {"x": 128, "y": 1, "z": 1}}
        plan = {
            **sizes,
            "forloop_range": loop,
            "input_map": [imap for _, imap, _ in loads],
            "forloop_dim": [fmap for _, _, fmap in loads],
            "input_smem_layouts": ["SmemRowMajor"] * len(loads),
            "ops": [[name, [[n, 0] for n in places]] for name, places, _ in steps],
            "output_map": omap,
        }
        block = {**sizes, "forloop_range": loop, "graph_level": "thread_block_graph", "smem_offset": 0}
        self.records.append(
            {
                "op_type": "kn_customized_op",
                "input_tensors": list(operands),
                "output_tensors": made,
                "bgraph": {**block, "operators": inner},
                "plan": plan,
            }
        )
        return made


def file_of(*graphs: FirstGraph) -> Record:
    """The file: the state of a search, with its graphs; a copy, in which no records are shared."""
    about: Record = {"best_graph": None, "best_profile_result": {"run_time": 1.0}, "callstack": [], "config": {}}
    found: Record = json.loads(json.dumps({**about, "generated_graphs": [graph.records for graph in graphs]}))
    return found


def attention(
    b: int = 2, m: int = 256, d: int = 64, n: int = 4096, *, grid: int = 16, loop: int = 16, divide: str = "kernel"
) -> FirstGraph:
    """exp(Q K) / sum times V, with rows cut by y and keys by the loop.

    Args:
        b: Heads.
        m: Rows.
        d: Width of a head.
        n: Keys.
        grid: Blocks along y.
        loop: Iterations.
        divide: "kernel": an operator divides. "block": a kernel does. "folded": the sum is folded to d first, and its
            rest is summed in the kernel that divides. "inside": it is divided inside the loop, which is wrong.
    """
    graph = FirstGraph((b, m, d), (b, d, n), (b, n, d))
    rows, keys = m // grid, n // loop
    omap = grid_map(0, 1)
    loads: list[Load] = [
        ((1, rows, d), grid_map(0, 1), -1),
        ((1, d, keys), grid_map(0), 2),
        ((1, keys, d), grid_map(0), 1),
    ]
    scores: list[Step] = [("tb_matmul_op", (0, 1), (1, rows, keys)), ("tb_exp_op", (3,), (1, rows, keys))]
    fold = "tb_reduction_2_to_dimx_op" if divide == "folded" else "tb_reduction_2_op"
    width = d if divide == "folded" else 1
    steps: list[Step] = [*scores, (fold, (4,), (1, rows, width)), ("tb_matmul_op", (4, 2), (1, rows, d))]
    saves: list[Save] = [(5, (1, rows, width), (b, m, width)), (6, (1, rows, d), (b, m, d))]
    if divide == "inside":
        steps.append(("tb_div_op", (6, 5), (1, rows, d)))
        graph.kernel(graph.inputs, (b, grid, 1), loop, loads, steps, [(7, (1, rows, d), (b, m, d))], omap)
        return graph
    total, product = graph.kernel(graph.inputs, (b, grid, 1), loop, loads, steps, saves, omap)
    if divide == "kernel":
        graph.op("kn_div_op", product, total, shape=(b, m, d))
        return graph
    again: list[Load] = [((1, rows, width), grid_map(0, 1), -1), ((1, rows, d), grid_map(0, 1), -1)]
    last: list[Step] = [("tb_div_op", (1, 0), (1, rows, d))]
    if divide == "folded":
        last = [("tb_reduction_2_op", (0,), (1, rows, 1)), ("tb_div_op", (1, 2), (1, rows, d))]
    place = 1 + len(last)
    graph.kernel([total, product], (b, grid, 1), 1, again, last, [(place, (1, rows, d), (b, m, d))], omap)
    return graph


def lora(b: int = 16, k: int = 256, n: int = 4096, r: int = 16, *, grid: int = 128, turned: bool = False) -> FirstGraph:
    """X W + (X A) B as the product of two concatenations, in one kernel without a loop; ``turned``: the other order."""
    graph = FirstGraph((b, k), (k, n), (k, r), (r, n))
    cols, both = n // grid, k + r
    loads: list[Load] = [
        ((b, k), grid_map(), -1),
        ((k, cols), grid_map(1), -1),
        ((k, r), grid_map(), -1),
        ((r, cols), grid_map(1), -1),
    ]
    left, right = ((4, 0), (3, 1)) if turned else ((0, 4), (1, 3))
    steps: list[Step] = [
        ("tb_matmul_op", (0, 2), (b, r)),
        ("tb_concat_1_op", left, (b, both)),
        ("tb_concat_0_op", right, (both, cols)),
        ("tb_matmul_op", (5, 6), (b, cols)),
    ]
    graph.kernel(graph.inputs, (grid, 1, 1), 1, loads, steps, [(7, (b, cols), (b, n))], grid_map(1))
    return graph


def lora_unfused(b: int = 16, k: int = 256, n: int = 4096, r: int = 16) -> FirstGraph:
    """The program itself, a kernel for each operator."""
    graph = FirstGraph((b, k), (k, n), (k, r), (r, n))
    x, w, a, c = graph.inputs
    low = graph.op("kn_matmul_op", graph.op("kn_matmul_op", x, a, shape=(b, r)), c, shape=(b, n))
    graph.op("kn_add_op", graph.op("kn_matmul_op", x, w, shape=(b, n)), low, shape=(b, n))
    return graph


ATTENTION: Mapping[str, FirstGraph] = {
    "divided by an operator": attention(),
    "divided by a kernel": attention(divide="block"),
    "folded to reduction_dimx": attention(divide="folded"),
    "another grid and loop": attention(grid=64, loop=8, divide="block"),
}
LORA: Mapping[str, FirstGraph] = {"unfused": lora_unfused(), "joined": lora(), "turned": lora(turned=True)}
