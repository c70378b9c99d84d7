"""The kernels that only read: they compile, they read every byte once, and grids are no larger than their work."""

from __future__ import annotations

import subprocess
from functools import reduce
from operator import xor
from pathlib import Path

import numpy as np
import pytest

from benchmarks.read_only import PIECE, PLAIN, SOURCES, UNIT, Variant, folded, variants
from mirage_formal.device.compile import compile

#: What CUDA gives the plain kernel, for one thread after another.
HOST = """
#include <cstdio>
#include <cstdlib>
#define __global__
#define __restrict__
#define __launch_bounds__(n)
struct uint4 { unsigned x, y, z, w; };
struct Place { unsigned x; } blockIdx, threadIdx, blockDim, gridDim;
template <class T> T __ldg(const T* p) { return *p; }
void atomicXor(unsigned* p, unsigned v) { *p ^= v; }
"""
MAIN = """
int main(int, char** given) {
  unsigned long long bytes = atoll(given[1]);
  gridDim.x = atoi(given[2]), blockDim.x = atoi(given[3]);
  uint4* data = static_cast<uint4*>(malloc(bytes + 1));
  if (fread(data, 1, bytes, stdin) != bytes) return 1;
  unsigned out = 0;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) read_plain(data, bytes, &out, 1, 0);
  printf("%u", out);
  free(data);
}
"""


@pytest.mark.parametrize("name", SOURCES)
def test_they_compile_without_spills_for_the_gpu_they_are_for(name: str) -> None:
    compiled = compile(SOURCES[name], "sm_90a")
    assert name.encode() in compiled.cubin
    assert (compiled.spill_bytes, compiled.stack_bytes, compiled.shared_bytes) == (0, 0, 0)
    assert compiled.registers <= 64


def test_plain_loads_read_every_byte_once(tmp_path: Path) -> None:
    source = tmp_path / "plain.cpp"
    source.write_text(HOST + PLAIN + MAIN)
    command = ["g++", "-std=c++17", "-O1", "-fsanitize=address", str(source), "-o", str(tmp_path / "plain")]
    subprocess.run(command, check=True)
    for units, blocks, threads in ((1, 1, 32), (5, 2, 32), (1000, 3, 32), (4096, 2, 64), (4097, 7, 32)):
        words = np.random.default_rng(units).integers(0, 2**32, 4 * units, dtype=np.uint32)
        given = [str(tmp_path / "plain"), str(words.nbytes), str(blocks), str(threads)]
        done = subprocess.run(given, input=words.tobytes(), capture_output=True, check=True)
        assert int(done.stdout) == folded(words)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 1001])
def test_a_fold_has_every_word(count: int) -> None:
    words = np.random.default_rng(count).integers(0, 2**32, count, dtype=np.uint32)
    assert folded(words) == reduce(xor, (int(word) for word in words), 0)


def test_grids_fit_their_work() -> None:
    small = variants(16 * 300, 132)
    assert Variant("read_plain", 2, 256) in small
    assert {variant.blocks for variant in small if variant.kernel == "read_bulk"} == {1}
    assert len(small) == len(set(small))
    large = variants(1 << 30, 132)
    assert {v.blocks // 132 for v in large if v.kernel == "read_plain" and v.threads == 256} == {1, 2, 4, 8, 16}
    for variant in large:
        assert variant.blocks % 132 == 0
        if variant.stages:
            # A multiprocessor of an H200 has 228 KiB, of which each block takes 1 KiB, and a block may have 227 KiB.
            assert variant.blocks // 132 * (variant.shared_bytes + 1024) <= 228 << 10
            assert variant.shared_bytes == variant.stages * (PIECE + 8)
    assert PIECE % UNIT == 0
