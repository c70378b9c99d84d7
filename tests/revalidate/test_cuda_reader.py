"""CUDA C++ is read back as the Program that it states, by a grammar that has no part in printing it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mirage_formal.check.check_steps import CheckFailed
from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.joined_launches.joined_printer import emit_launched
from mirage_formal.codegen.program import program as ir
from mirage_formal.graph.types import DType
from mirage_formal.revalidate import rederive
from mirage_formal.revalidate.cuda_reader import read_cuda, text_of_program
from mirage_formal.revalidate.rederive import derive_kernels, first_difference
from mirage_formal.support.errors import FormatError
from tests.codegen.test_golden import KERNELS, programs
from tests.kit.kernels.emulated_programs import PIPELINES, WARPGROUP_PRODUCTS
from tests.kit.runs.small_runs import kernel_runs
from tests.kit.runs.tampering import copy
from tests.revalidate.test_kernel_evidence import in_source, sign_sources

pytest.importorskip("tree_sitter_cuda")


@cache
def each() -> list[ir.Program]:
    """Programs of each kind of kernel."""
    generated = (program for made in KERNELS.values() for program in programs(made()))
    return [*generated, *WARPGROUP_PRODUCTS, *PIPELINES]


def differs(program: ir.Program, text: str) -> bool:
    """Whether a text is refused, or states another Program."""
    try:
        stated = read_cuda(text)
        return first_difference(text_of_program(program, stated.extents), stated) is not None
    except FormatError:
        return True


def test_each_kind_of_kernel_states_its_program() -> None:
    assert len(each()) > 12
    kinds: set[type] = set()

    def gather(item: Any) -> None:
        kinds.add(type(item))
        for field in getattr(item, "__dataclass_fields__", ()):
            gather(getattr(item, field))
        for one in item if isinstance(item, tuple) else ():
            gather(one)

    for program in each():
        assert not differs(program, emit_cuda(program)), program.name
        gather(program)
    assert set(ir.Stmt.__args__) - kinds <= {ir.ShuffleReduce}, "the kernels have every statement but these"


def kernel(*body: ir.Stmt) -> ir.Program:
    """A small Program with a read and a written parameter, a buffer, and registers of both kinds."""
    params = (ir.Param("x", DType.FLOAT32, 64, False), ir.Param("y", DType.FLOAT16, 64, True))
    first = (ir.Registers("r", 8), ir.Registers("w", 8, words=True))
    return ir.Program("k", params, (ir.SharedBuffer("s", DType.FLOAT32, 64, 0),), (2, 1, 1), 32, (*first, *body))


TID, READ = ir.Var("tid"), ir.GlobalRead("x", ir.Var("tid"))


@pytest.mark.parametrize(
    "statement",
    [
        *(ir.SetReg("r", ir.Int(0), ir.Apply(fn, READ)) for fn in ir.UNARY_FUNCTIONS.values()),
        *(ir.SetReg("r", ir.Int(0), ir.Combine(fn, READ, ir.Real(0.5))) for fn in ir.BinaryFn),
        *(
            ir.SetReg("r", ir.Int(0), ir.Real(x))
            for x in (0.0, -2.5, 1e-45, 3.4028234663852886e38, -float("inf"), 1 / 3)
        ),
        *(ir.ShuffleReduce("r", ir.Int(1), fn, 4) for fn in (ir.BinaryFn.ADD, ir.BinaryFn.MAX)),
        ir.SetReg("r", ir.Int(0), ir.Select(ir.IntBin(ir.IntOp.LT, TID, ir.Int(3)), READ, ir.Real(-1.0))),
        ir.SetReg("r", ir.Int(0), ir.Where(READ, READ, ir.Apply(ir.KernelFn.NEG, READ))),
        ir.Registers("more", 4, initial=-0.1),
        ir.If(ir.IntBin(ir.IntOp.EQ, TID, ir.Int(0)), (ir.Barrier(),), uniform=True),
    ],
    ids=str,
)
def test_each_function_is_read(statement: ir.Stmt) -> None:
    assert not differs(kernel(statement), emit_cuda(kernel(statement)))


def mutants(text: str, count: int, seed: int) -> Iterator[str]:
    """Texts with one token taken away, written twice, or put in the place of another; comments stay."""
    draw = random.Random(seed)
    code = re.sub(r"//[^\n]*", lambda found: " " * len(found[0]), text)
    tokens = [(found.start(), found.end()) for found in re.finditer(r"[A-Za-z_]\w*|[0-9][\w.]*|&&|==|::|\S", code)]
    for _ in range(count):
        begin, end = draw.choice(tokens)
        other = code[slice(*draw.choice(tokens))]
        token = code[begin:end]
        changed = draw.choice(["", f"{token} {token}", other])
        if changed != token:
            yield code[:begin] + f" {changed} " + code[end:]


def test_no_changed_token_goes_unseen() -> None:
    """A comma more behind the last of an initializer list changes nothing, and the grammar takes it."""
    tried, unseen = 0, []
    for number, program in enumerate(each()):
        text = emit_cuda(program)
        for mutant in mutants(text, 120, number):
            tried += 1
            if not differs(program, mutant):
                unseen.append(mutant)
    assert tried > 1500
    assert unseen == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("#include", "#define tid 0\n#include"), "headers of the device layer"),
        (("mf::store(", "mf::store_twice("), "function of the device layer"),
        (("tid) + 0.5f", "tid) + 0.30000001192092896f5"), "grammar"),
        (("0.5f", "0.5000000298023223876953125f"), "nearest to one float32"),
        (("0.5f", "0.5"), "literal of float32"),
        (("[0]", "[00]"), "decimal integer"),
        (("[0]", "[n]"), "a variable"),
        (("r[0] =", "r[0] +="), "'='"),
        (("// the end", "\\\n// the end"), "backslashes"),
        (("// the end", 'extern "C" __global__ void __launch_bounds__(1) z() {}'), "one kernel"),
        (("mf::below<32>(threadIdx.x)", "mf::below<32>(threadIdx.y)"), "coordinate"),
        (("mf::below<32>", "mf::below<64>"), "extent of tid"),
    ],
)
def test_what_else_a_text_has_is_refused_with_its_line(change: tuple[str, str], said: str) -> None:
    body = ir.SetReg("r", ir.Int(0), ir.Combine(ir.BinaryFn.ADD, READ, ir.Real(0.5)))
    program = kernel(body, ir.GlobalWrite("y", TID, (ir.Reg("r", ir.Int(0)),)))
    text = emit_cuda(program) + "// the end\n"
    assert change[0] in text
    with pytest.raises(FormatError, match=re.escape(said)):
        text_of_program(program, read_cuda(text.replace(*change)).extents)


def test_a_printer_that_errs_is_found(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The text on disk is what the printer makes of the Program, today as it was: only reading it tells."""
    root = copy(kernel_runs(tmp_path_factory.mktemp("runs"))["attention"], tmp_path / "run")
    directory = min((root / "kernels").iterdir())
    assert derive_kernels(directory).read_back > 0

    def err(text: str) -> str:
        return text.replace("tid % 4", "tid % 8", 1)

    in_source(err)(directory)
    sign_sources(directory)
    monkeypatch.setattr(rederive, "emit_launched", lambda program: err(emit_launched(program)))
    with pytest.raises(CheckFailed, match=r"read back.*got"):
        derive_kernels(directory)
    monkeypatch.setattr(rederive, "has_cuda_grammar", lambda: False)
    with pytest.raises(CheckFailed, match="machine code"):  # which is of the other text; without it all would hold
        derive_kernels(directory)
