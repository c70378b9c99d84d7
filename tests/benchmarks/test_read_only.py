"""The kernels that only read: they compile, they read every byte once, and grids are no larger than their work."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import reduce
from operator import xor
from pathlib import Path

import numpy as np
import pytest

from benchmarks.read_only import BULK, PIECE, PLAIN, SOURCES, TYPES, UNIT, Variant, folded, variants
from mirage_formal.device.compile import compile
from tests.kit.processes import HUNG_S

#: What CUDA gives the kernels, on threads of the host: those of one block at a time.
HOST = """
#include <atomic>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#define __global__
#define __shared__
#define __align__(n)
#define __restrict__
#define __launch_bounds__(n)
#define __cvta_generic_to_shared(p) 0u
struct uint4 { unsigned x, y, z, w; };
struct Place { unsigned x; } blockIdx, blockDim, gridDim;
thread_local Place threadIdx;
template <class T> T __ldg(const T* p) { return *p; }
void atomicXor(unsigned* p, unsigned v) { __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST); }
std::barrier<>* warp;
void __syncwarp() { warp->arrive_and_wait(); }
alignas(128) unsigned char ring[1 << 18];
"""
#: mbarriers: a phase ends when what is expected has been copied; a wait asks whether the phase of a parity has ended.
MACHINE = """
struct Barrier { long long left; std::atomic<unsigned> ended; } barriers[1 << 15];
Barrier& at(u32 barrier) { return barriers[barrier / 8]; }
void make(u32 barrier) { at(barrier).left = 0, at(barrier).ended = 0; }
void publish() {}
void expect(u32 barrier, u32 bytes) {
  if (at(barrier).left != 0) abort();
  at(barrier).left = bytes;
}
void copy(u32 to, const void* from, u32 bytes, u32 barrier) {
  if (to % 16 || bytes % 16 || reinterpret_cast<size_t>(from) % 16) abort();
  memcpy(ring + to, from, bytes);
  if ((at(barrier).left -= bytes) == 0) at(barrier).ended++;
}
bool arrived(u32 barrier, u32 phase) {
  std::this_thread::yield();
  return (at(barrier).ended & 1) != phase;
}
"""
MAIN = """
int main(int, char** given) {
  unsigned long long bytes = atoll(given[1]);
  gridDim.x = atoi(given[2]), blockDim.x = atoi(given[3]);
  char* data = static_cast<char*>(malloc(bytes));
  if (fread(data, 1, bytes, stdin) != bytes) return 1;
  unsigned out = 0;
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
    std::barrier<> together(blockDim.x);
    warp = &together;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < blockDim.x; ++t)
      threads.emplace_back([&, t] {
        threadIdx.x = t;
        KERNEL(reinterpret_cast<DATA*>(data), bytes, &out, 1, atoi(given[4]));
      });
    for (std::thread& thread : threads) thread.join();
  }
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


def on_host(place: Path, kernel: str, data: str, text: str) -> Callable[[int, int, int, int], bool]:
    """A kernel built for the host; whether it folds so many random bytes as NumPy does, on a grid."""
    source, program = place / f"{kernel}.cpp", place / kernel
    source.write_text(HOST + TYPES + text + MAIN)
    names = [f"-DKERNEL={kernel}", f"-DDATA={data}"]
    command = ["g++", "-std=c++20", "-O1", "-fsanitize=address", "-pthread", *names, str(source), "-o", str(program)]
    subprocess.run(command, check=True)

    def folds(size: int, blocks: int, threads: int, stages: int) -> bool:
        words = np.random.default_rng(size).integers(0, 2**32, size // 4, dtype=np.uint32)
        given = [str(program), str(size), str(blocks), str(threads), str(stages)]
        done = subprocess.run(given, input=words.tobytes(), capture_output=True, check=True, timeout=HUNG_S)
        return int(done.stdout) == folded(words)

    return folds


def test_plain_loads_read_every_byte_once(tmp_path: Path) -> None:
    folds = on_host(tmp_path, "read_plain", "uint4", PLAIN)
    for units, blocks, threads in ((1, 1, 32), (5, 2, 32), (1000, 3, 32), (4096, 2, 16), (4097, 7, 32)):
        assert folds(16 * units, blocks, threads, 0)


def test_bulk_copies_read_every_byte_once(tmp_path: Path) -> None:
    folds = on_host(tmp_path, "read_bulk", "unsigned char", MACHINE + BULK)
    for size, blocks, stages in (
        (16, 1, 3),
        (PIECE, 2, 3),
        (7 * PIECE + 48, 2, 3),  # stages that are filled again, an odd number of times
        (9 * PIECE - 16, 1, 1),
        (24 * PIECE, 3, 4),
        (25 * PIECE + 16, 1, 12),
    ):
        assert folds(size, blocks, 32, stages), (size, blocks, stages)


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
