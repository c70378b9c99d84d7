"""How long a GPU takes only to read so many bytes: what no program that has them as its inputs can be faster than.

Two kernels, each at several sizes of the grid: plain loads of 16 bytes, and bulk copies of 16 KiB into a ring of shared
memory, by blocks that stay. What is read is folded by exclusive or and stored only if it is one number, which random
bytes are not in practice but which no compiler can rule out. With ``check`` the fold of all bytes is stored instead: a
variant that leaves a byte out, or reads one twice, is found before anything is timed.

    python -m benchmarks.read_only [MiB...]     # on a GPU: every variant at some sizes

Options:
  mib [MIB...]  [default: 0.19 2 12 100 2048]
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Final

from benchmarks.harness import ROOT, options

UNIT: Final = 16
PIECE: Final = 16 << 10
_MAX_DYNAMIC_SHARED: Final = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

_CUDA: Final = ROOT / "benchmarks" / "cuda"
_FILES: Final = ("types", "read_plain", "barriers", "read_bulk")
TYPES, PLAIN, MACHINE, BULK = ((_CUDA / f"{name}.cu").read_text(encoding="utf-8") for name in _FILES)
SOURCES: Final = {"read_plain": TYPES + PLAIN, "read_bulk": TYPES + MACHINE + BULK}


@dataclass(frozen=True, slots=True)
class Variant:
    """One kernel on one grid; ``stages`` pieces are on their way for each block of read_bulk."""

    kernel: str
    blocks: int
    threads: int
    stages: int = 0

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: pieces and their barriers."""
        return self.stages * (PIECE + 8)

    def __str__(self) -> str:
        stages = f" and {self.stages} pieces" if self.stages else ""
        return f"{self.kernel}, {self.blocks} blocks of {self.threads}{stages}"


def variants(size: int, processors: int) -> list[Variant]:
    """What is tried for so many bytes: grids of a few multiples of the multiprocessors, no larger than there is work.

    Args:
        size: Bytes, a multiple of 16.
        processors: Multiprocessors of the GPU.
    """
    plain = [*((256, n) for n in (1, 2, 4, 8, 16)), (1024, 1), (1024, 2)]
    bulk = [(12, 1), (6, 2), (4, 3), (3, 4)]  # about as much as a multiprocessor has, in 1 to 4 blocks
    found = [Variant("read_plain", min(n * processors, _up(size, UNIT * threads)), threads) for threads, n in plain]
    found += [Variant("read_bulk", min(n * processors, _up(size, PIECE)), 32, stages) for stages, n in bulk]
    return list(dict.fromkeys(found))


class Reader:
    """The variants for so many bytes on torch's current device.

    Args:
        size: Bytes that a program reads; rounded up to whole loads.

    Raises:
        CompileError: NVRTC is missing, or does not know the architecture.
    """

    def __init__(self, size: int) -> None:
        self._torch, cupy = import_module("torch"), import_module("cupy")
        device = self._torch.cuda.current_device()
        cupy.cuda.Device(device).use()
        self.size = _up(size, UNIT) * UNIT
        properties = self._torch.cuda.get_device_properties(device)
        found = variants(self.size, properties.multi_processor_count)
        self.variants = [v for v in found if v.kernel != "read_bulk" or properties.major >= 9]
        self._out = self._torch.zeros(1, dtype=self._torch.int32, device="cuda")
        self._driver = cupy.cuda.driver
        self._functions = {name: self._function(cupy, name, device) for name in {v.kernel for v in self.variants}}

    def inputs(self, seed: int) -> list[Any]:
        """One set of random bytes."""
        torch = self._torch
        generator = torch.Generator(device="cuda").manual_seed(seed)
        words = (self.size // 4,)
        return [torch.randint(-(2**31), 2**31 - 1, words, generator=generator, device="cuda", dtype=torch.int32)]

    def call(self, variant: Variant, *, check: bool = False) -> Callable[[Sequence[Any]], None]:
        """What launches a variant on torch's current stream."""

        def run(inputs: Sequence[Any]) -> None:
            values = (
                ctypes.c_uint64(inputs[0].data_ptr()),
                ctypes.c_uint64(self.size),
                ctypes.c_uint64(self._out.data_ptr()),
                ctypes.c_uint32(check),
                ctypes.c_uint32(variant.stages),
            )
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            stream, at = self._torch.cuda.current_stream().cuda_stream, ctypes.addressof(pointers)
            grid, block = (variant.blocks, 1, 1), (variant.threads, 1, 1)
            function = int(self._functions[variant.kernel][1].ptr)
            self._driver.launchKernel(function, *grid, *block, variant.shared_bytes, stream, at, 0)

        return run

    def verified(self) -> Iterator[Variant]:
        """The variants, each after it has read every byte of one set once.

        Raises:
            ValueError: It has not.
        """
        given = self.inputs(0)
        want = folded(given[0]) & 0xFFFFFFFF
        for variant in self.variants:
            self._out.zero_()
            self.call(variant, check=True)(given)
            got = int(self._out.item()) & 0xFFFFFFFF
            if got != want:
                raise ValueError(f"{variant}: expected the fold {want:#x} of {self.size} bytes, got {got:#x}")
            yield variant

    def _function(self, cupy: Any, name: str, device: int) -> tuple[Any, Any]:
        from mirage_formal.device.runtime import arch_of

        module = cupy.cuda.function.Module()
        module.load(_cubin(name, arch_of(device)))
        function = module.get_function(name)
        most = max(variant.shared_bytes for variant in self.variants if variant.kernel == name)
        self._driver.funcSetAttribute(function.ptr, _MAX_DYNAMIC_SHARED, most)
        return module, function


@cache
def _cubin(name: str, arch: str) -> bytes:
    from mirage_formal.device.compile import compile

    return compile(SOURCES[name], arch, fresh=True).cubin


def folded(words: Any) -> int:
    """Exclusive or of all elements of a vector of torch or NumPy, by halves."""
    rest = 0
    while len(words) > 1:
        if len(words) % 2:
            rest ^= int(words[-1])
        half = len(words) // 2
        words = words[:half] ^ words[half : 2 * half]
    return rest ^ (int(words[0]) if len(words) else 0)


def main() -> int:
    """The command line."""
    from mirage_formal.device.measure import TorchRecorder, measure

    for mib in options(__doc__).mib:
        reader = Reader(int(float(mib) * (1 << 20)))
        for variant in reader.verified():
            us = measure(reader.call(variant), reader.inputs, reader.size, TorchRecorder()).us
            print(f"{float(mib):8g} MiB {us:9.2f} us {reader.size / us / 1e3:8.0f} GB/s  {variant}", flush=True)
    return 0


def _up(size: int, unit: int) -> int:
    return -(-size // unit)


if __name__ == "__main__":
    sys.exit(main())
