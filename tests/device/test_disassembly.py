"""PTX and SASS with the lines of the source that they were compiled from."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generate import generate
from mirage_formal.codegen.generated_launches import GeneratedKernel
from mirage_formal.codegen.target import load_target
from mirage_formal.device import compile as nvrtc
from mirage_formal.device import disassembly
from mirage_formal.device.disassembly import assembly_texts, parse_ptx, parse_sass
from tests.kit.kernels.device_kernels import chain

PTX = """\
//
// Compiler
.visible .entry kernel0(
\t.param .u64 p
)
{
\t.reg .b32 %r<4>;
\t.loc\t1 8 0
\tld.param.u64 \t%rd6, [p];
\t.loc\t2 261 24, function_name $L__info_string0, inlined_at 1 27 3
\t.loc\t2 248 3, function_name $L__info_string1, inlined_at 2 261 24
\tshl.b32 \t%r1, %r2, 1;
\t// begin inline asm
\tcp.async.cg.shared.global [%r1], [%rd6], 16;
\t.loc\t2 12 3
\tbar.sync \t0;
$L__BB0_1:
\t.loc\t1 30 5
\t@%p1 bra \t$L__BB0_1;

}
\t.file\t1 "/home/someone/kernel.cu"
\t.file\t2 "/home/someone/mirage_formal/device.cuh"
\t.section\t.debug_str
{
$L__info_string0:
}
"""
SASS = """\
\t.target\tsm_90a
kernel0:
.text.kernel0:
\t//## File "/home/someone/kernel.cu", line 8
        /*0000*/                   LDC R1, c[0x0][0x28] ;
\t//## File "/home/x/mirage_formal/device.cuh", line 248 inlined at "/home/x/mirage_formal/device.cuh", line 261
\t//## File "/home/someone/mirage_formal/device.cuh", line 261 inlined at "/home/someone/kernel.cu", line 27
\t//## File "/home/someone/kernel.cu", line 27
        /*0010*/              @!PT LDS RZ, [RZ] ;
.L_x_1:
        /*0020*/                   BRA `(.L_x_1) ;
"""


def test_a_location_in_a_header_is_that_of_the_call_in_the_source() -> None:
    found = parse_ptx(PTX)
    lines = dict(zip(found.text.split("\n"), found.sources, strict=True))
    assert {"shl.b32", "cp.async.cg.shared.global"} <= {line.split()[0] for line, at in lines.items() if at == 27}
    assert lines["    ld.param.u64     %rd6, [p];"] == 8
    assert lines["    @%p1 bra     $L__BB0_1;"] == 30
    assert lines["    bar.sync     0;"] == 0  # of a header, and nothing says who calls it
    assert lines["    .reg .b32 %r<4>;"] == lines["$L__BB0_1:"] == 0
    assert not any(word in found.text for word in (".loc", ".file", "info_string"))


def test_an_instruction_has_the_line_of_the_outermost_call() -> None:
    found = parse_sass(SASS)
    assert list(zip(found.sources, found.text.split("\n"), strict=True)) == [
        (8, "/*0000*/ LDC R1, c[0x0][0x28] ;"),
        (27, "/*0010*/ @!PT LDS RZ, [RZ] ;"),
        (0, ".L_x_1:"),
        (27, "/*0020*/ BRA `(.L_x_1) ;"),
    ]


@pytest.mark.skipif(not nvrtc.available(), reason="needs NVRTC")
def test_a_kernel_is_compiled_and_its_copies_are_those_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    made = generate(chain(), load_target("h200"))
    source = next(emit_cuda(step.program) for step in made.steps if isinstance(step, GeneratedKernel))
    monkeypatch.setenv("MIRAGE_FORMAL_NVDISASM", "/nowhere/nvdisasm")
    ptx, sass = assembly_texts(source, "sm_90a")
    rows = source.split("\n")
    stores = [at for line, at in zip(ptx.text.split("\n"), ptx.sources, strict=True) if "st.global" in line]
    assert stores
    assert all("store" in rows[at - 1] or "mf::" in rows[at - 1] for at in stores)
    assert (sass.text, sass.sources) == ("", ())
    assert "nvdisasm failed" in sass.missing


def test_a_missing_disassembler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(disassembly, "_nvdisasm_paths", lambda: iter(()))
    monkeypatch.setattr(disassembly, "compile_with_lines", lambda source, arch: (b"", PTX))
    assert "pip install nvidia-cuda-nvdisasm" in assembly_texts("", "sm_90a")[1].missing
    tool = tmp_path / "nvdisasm"
    tool.write_text(f"#!/bin/sh\ncat <<'end'\n{SASS}end\n")
    tool.chmod(0o755)
    monkeypatch.setattr(disassembly, "_nvdisasm_paths", lambda: iter([str(tool)]))
    assert assembly_texts("", "sm_90a")[1] == parse_sass(SASS)
