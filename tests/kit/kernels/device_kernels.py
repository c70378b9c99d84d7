"""Writes the kernels that tests on a GPU call: python -m tests.kit.kernels.device_kernels DIR, where solvers are."""

from __future__ import annotations

import sys
from pathlib import Path

from mirage_formal.codegen.target import load_target
from mirage_formal.graph.graph import Input, KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.kernel_build.build import build
from mirage_formal.kernel_build.save import save_built
from tests.kit.graphs import workloads as w

K = OpKind


def predefined(dtype: DType = DType.FLOAT16) -> KernelGraph:
    """softmax(rms_norm(X) W) beside silu(X W') with W' column-major; two outputs."""
    x = Input("X", DTensor((3, 16, 96), dtype), (16 * 96, 96, 1))
    a = Input("W", DTensor((3, 96, 64), dtype), (96 * 64, 64, 1))
    b = Input("U", DTensor((3, 96, 64), dtype), (96 * 64, 1, 96))
    ops = (
        Op(K.RMS_NORM, (0,), Attrs(dim=2)),
        Op(K.MATMUL, (3, 1)),
        Op(K.SOFTMAX, (4,), Attrs(dim=2)),
        Op(K.MATMUL, (0, 2)),
        Op(K.SILU, (6,)),
        Op(K.ADD, (5, 7)),
    )
    return KernelGraph((x, a, b), ops, (8, 7))


def chain(rows: int = 64, cols: int = 256) -> KernelGraph:
    """Generated kernels only, one behind the other: silu(softmax(rms_norm(X)))."""
    x = Input("X", DTensor((rows, cols), DType.FLOAT16), (cols, 1))
    ops = (
        Op(K.RMS_NORM, (0,), Attrs(dim=1)),
        Op(K.SOFTMAX, (1,), Attrs(dim=1)),
        Op(K.SILU, (2,), Attrs()),
    )
    return KernelGraph((x,), ops, (3,))


def candidates() -> dict[str, tuple[KernelGraph, KernelGraph]]:
    """Program and candidate by name."""
    return {
        "predefined": (predefined(), predefined()),
        "predefined_bfloat16": (predefined(DType.BFLOAT16), predefined(DType.BFLOAT16)),
        "split": (w.attention(m=64, n=512), w.attention_split(m=64, n=512, split=4, loop=2)),
        # Many blocks: those of a kernel begin while the last ones of the kernel before are at work.
        "chain": (chain(4096, 1024), chain(4096, 1024)),
        "lora": (w.lora(), w.lora_fused()),
        "ntrans": (w.ntrans(), w.ntrans_fused()),
    }


def main() -> None:
    """Write all of them."""
    for name, (program, candidate) in candidates().items():
        save_built(build(candidate, program, load_target("h200"), ("sm_90a",)), Path(sys.argv[1]) / name)


if __name__ == "__main__":
    main()
