"""NVRTC compiles every kind of kernel for both architectures without spills; its cache is exact and survives damage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mirage_formal.cache.cache_directory import Cache, CacheWarning
from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.executable import Compiled
from mirage_formal.device import compile as compiler
from mirage_formal.device.compile import CompileError, compile
from mirage_formal.kernel_build.build import ARCHS
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.resources import data_dir
from tests.kit.kernels.emulated_programs import every_kernel, masked_copy

KERNELS = {kernel.name: kernel for kernel in every_kernel()}

SPILLS = """
extern "C" __global__ void __launch_bounds__(1024, 2) spills(float* out, const float* in) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = in[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) out[(i * 1024 + threadIdx.x) * 3] = a[63 - i] * a[(i * 7) % 64];
}
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MIRAGE_FORMAL_CACHE", str(tmp_path))
    return tmp_path / "cubins"


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_compiles_without_spills(name: str, arch: str) -> None:
    compiled = compile(emit_cuda(KERNELS[name]), arch)
    assert compiled.cubin.startswith(b"\x7fELF")
    assert name.encode() in compiled.cubin
    assert 0 < compiled.registers <= 64
    assert (compiled.spill_bytes, compiled.stack_bytes, compiled.shared_bytes) == (0, 0, 0)
    assert f"for '{arch}'" in compiled.log


def test_spills_and_static_shared_memory_are_read_back(cache: Path) -> None:
    spills = compile(SPILLS, "sm_80")
    assert spills.registers == 32
    assert spills.spill_bytes > 0
    source = SPILLS.replace("1024, 2", "1024").replace(
        "float a[64];", "__shared__ float s[25]; s[threadIdx.x % 25] = 1;"
    )
    source = source.replace("a[i] = in", "s[i % 25] = in").replace("a[63 - i] * a[(i * 7) % 64]", "s[i % 25]")
    assert compile(source, "sm_80").shared_bytes == 100


def test_the_cache_is_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = emit_cuda(masked_copy())
    first = compile(source, "sm_80")

    def refuse(*_: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler._Nvrtc, "compile", refuse)
    assert compile(source, "sm_80") == first
    # Another source, architecture or header is another entry.
    for other in (source + "\n", emit_cuda(replace(masked_copy(), name="other"))):
        with pytest.raises(AssertionError, match="compiled again"):
            compile(other, "sm_80")
    with pytest.raises(AssertionError, match="compiled again"):
        compile(source, "sm_90a")
    header = tmp_header(cache)
    monkeypatch.setattr(compiler, "data_dir", lambda _: header)
    with pytest.raises(AssertionError, match="compiled again"):
        compile(source, "sm_80")


def tmp_header(cache: Path) -> Path:
    """A data directory whose device header has one more line."""
    original = data_dir("gpu") / "include" / "mirage_formal" / "device.cuh"
    path = cache / "gpu" / "include" / "mirage_formal" / "device.cuh"
    path.parent.mkdir(parents=True)
    path.write_text(original.read_text() + "\n")
    return cache / "gpu"


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "list"])
def test_a_damaged_entry_is_compiled_again(cache: Path, damage: str) -> None:
    source = emit_cuda(masked_copy())
    first = compile(source, "sm_80")
    (entry,) = cache.glob("*/entry.json")
    good = entry.read_bytes()
    raw = bytearray(good)
    raw[len(raw) // 2] ^= 1
    entry.write_bytes({"flip": bytes(raw), "truncate": bytes(raw[:-30]), "empty": b"", "list": b"[]\n"}[damage])
    with pytest.warns(CacheWarning, match="refused, and made again"):
        assert compile(source, "sm_80") == first
    assert entry.read_bytes() == good
    assert compile(source, "sm_80") == first


def test_two_exchanged_entries_are_compiled_again(cache: Path) -> None:
    sources = [emit_cuda(masked_copy()), emit_cuda(replace(masked_copy(), name="other"))]
    made = [compile(source, "sm_80") for source in sources]
    first, second = sorted(cache.glob("*/entry.json"))
    texts = first.read_bytes(), second.read_bytes()
    first.write_bytes(texts[1])
    second.write_bytes(texts[0])
    with pytest.warns(CacheWarning, match="got another key"):
        assert [compile(source, "sm_80") for source in sources] == made
    assert (first.read_bytes(), second.read_bytes()) == texts


def test_a_kernel_that_does_not_compile_is_shown(cache: Path) -> None:
    with pytest.raises(CompileError, match="nonsense"):
        compile("nonsense", "sm_80")
    assert not cache.exists()


def test_an_unknown_architecture_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedError, match="sm_90a"):
        compile(emit_cuda(masked_copy()), "sm_12345")


def test_it_says_which_build_compiled_it(cache: Path) -> None:
    made = compile(emit_cuda(masked_copy()), "sm_80")
    assert made.compiler.startswith(compiler.version())
    note = b"Cuda compilation tools, release 13.5, V13.5.37\0"
    log = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 9 registers"
    assert compiler._parse_ptxas_log(b"\0" + note, log, "13.5").compiler == "13.5.37"


def test_a_fresh_result_is_the_same_and_has_nothing_to_do_with_the_cache(cache: Path) -> None:
    source = emit_cuda(masked_copy())
    first = compile(source, "sm_80", fresh=True)
    assert not cache.exists()
    assert compile(source, "sm_80") == first
    cubins = Cache("cubins", compiler.CubinEntry)
    (entry,) = cubins.entries()
    cubins.put(cubins.read(entry).record.key, replace(first, cubin=b"another"))
    assert compile(source, "sm_80").cubin == b"another"
    assert compile(source, "sm_80", fresh=True) == first


def test_without_nvrtc_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRAGE_FORMAL_NVRTC", "/nowhere/libnvrtc.so")
    compiler._nvrtc.cache_clear()
    try:
        assert not compiler.available()
        with pytest.raises(CompileError, match="cuda13") as error:
            compile(emit_cuda(masked_copy()), "sm_80")
        assert "/nowhere/libnvrtc.so" in str(error.value)
    finally:
        compiler._nvrtc.cache_clear()
    monkeypatch.delenv("MIRAGE_FORMAL_NVRTC")
    assert compiler.available()


def test_a_log_without_figures_is_refused() -> None:
    with pytest.raises(CompileError, match="registers and spills"):
        compiler._parse_ptxas_log(b"", "ptxas info    : 0 bytes gmem", "12.8")
    log = "8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\nUsed 40 registers, 96 bytes smem"
    assert compiler._parse_ptxas_log(b"c", log, "12.8") == Compiled(b"c", 40, 16, 8, 96, log, "12.8")
