"""What stands in a Triton file: one test for each known trap, without Triton or torch."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from fractions import Fraction

import pytest

import mirage_formal as mf
from mirage_formal.codegen.triton.file import triton_file
from mirage_formal.codegen.triton.host import torch_call
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.graph.graph import BlockGraph, GraphDefined, InputIterator, KernelGraph, Op, OutputSaver
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import UnsupportedError
from tests.kit.graphs.text_reader import from_text
from tests.kit.kernels import example_kernels, masked_attention, tails
from tests.kit.kernels import triton_files as kit
from tests.kit.kernels.band_graphs import FLASH

K = OpKind
ROWS = [row for row in example_kernels.fastest() if row.endswith("-b1")]


def text_of(row: str) -> str:
    name, batch = row.rsplit("-b", 1)
    return kit.case(row, example_kernels.real(name, int(batch)), example_kernels.fastest()[row]).file.text


def text(graph: KernelGraph) -> str:
    return triton_file(graph, graph, kit.H200).text


def kernel(graph: mf.Graph, inputs: list[InputIterator], ops: list[Op], **more: object) -> KernelGraph:
    """A graph of one kernel on one block, whose last operator is its output."""
    program = graph.freeze()
    block = BlockGraph(
        **{"grid": (1, 1, 1), "block": (128, 1, 1), "forloop_range": 1, "reduction_dimx": 4}  # type: ignore[arg-type]
        | more,
        inputs=tuple(inputs),
        ops=tuple(ops),
        outputs=(OutputSaver(len(inputs) + len(ops) - 1, (None, None, None)),),
    )
    count = len(program.inputs)
    return KernelGraph(program.inputs, (GraphDefined(tuple(range(count)), block),), (count,))


# --- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_a_file_imports_torch_and_triton_only_and_is_clean(row: str) -> None:
    found = text_of(row)
    names = {alias.name for node in ast.walk(ast.parse(found)) if isinstance(node, ast.Import) for alias in node.names}
    assert names == {"torch", "triton", "triton.language"}
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(ast.parse(found)))
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "-"]
    done = subprocess.run(ruff, input=found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert 'if __name__ == "__main__":\n    raise SystemExit(main())' in found


def test_writing_a_file_loads_neither_torch_nor_triton() -> None:
    code = (
        "import sys, mirage_formal as mf\n"
        "g = mf.new_kernel_graph(); x = g.new_input(dims=(8, 64)); g.mark_output(g.softmax(g.exp(x), dim=1))\n"
        "from mirage_formal.codegen.triton.file import triton_file\n"
        "from mirage_formal.codegen.target import load_target\n"
        "assert 'tl.exp' in triton_file(g.freeze(), g.freeze(), load_target('h200')).text\n"
        "print(sorted({'torch', 'triton'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_names_of_inputs_become_names_of_python() -> None:
    g = mf.new_kernel_graph()
    for name in ("x", "tl", "run", "t3", "µ", "_"):
        g.mark_output(g.exp(g.new_input(dims=(4, 4), name=name)))
    found = text(g.freeze())
    assert "def run(x, x_tl, x_run, t3_3, x_4, x_5, poison=False):" in found
    compile(found, "file", "exec")


def test_shapes_strides_and_types_are_asserted() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(4, 8), strides=(1, 4), dtype=mf.bfloat16, name="x")
    g.mark_output(g.exp(x))
    found = text(g.freeze())
    assert "((4, 8), (1, 4), torch.bfloat16),  # x" in found
    assert '_expect("x", x, *INPUTS[0])' in found
    assert found.count("    assert ") == 3


# --- traps -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS)
def test_precision_and_fusion_are_set_explicitly(row: str) -> None:
    found = text_of(row)
    dots = re.findall(r"tl\.dot\(.*", found)
    assert all('input_precision="ieee"' in line and "out_dtype=tl.float32" in line for line in dots)
    launches = re.findall(r"kernel\d+\[.*", found)
    assert launches
    assert all("enable_fp_fusion=False" in line for line in launches)


def test_float32_is_multiplied_as_three_products_of_tf32() -> None:
    """What "ieee" asks for is no work of tensor cores, and one product of TF32 has 10 bits behind the point."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(32, 64), dtype=mf.float32)
    y = g.new_input(dims=(64, 16), dtype=mf.float32)
    g.mark_output(g.matmul(x, y))
    whole = InputIterator((None, None, None), None)
    (dot,) = re.findall(r"tl\.dot\(.*", text(kernel(g, [whole] * 2, [Op(K.MATMUL, (0, 1)), Op(K.ACCUM_SUM, (2,))])))
    assert 'input_precision="tf32x3", out_dtype=tl.float32' in dot


@pytest.mark.parametrize("row", ROWS)
def test_loops_have_constant_bounds(row: str) -> None:
    """The interpreter of Triton 3.6.0 takes no others."""
    assert all(re.fullmatch(r"for \w+ in range\(\d+\):", line.strip()) for line in loops(text_of(row)))


def loops(found: str) -> list[str]:
    """Headers of loops of functions of Triton."""
    inside = re.findall(r"^@triton\.jit\n(?:.+\n)+", found, re.MULTILINE)
    return [line for one in inside for line in one.splitlines() if line.strip().startswith("for ")]


def test_exponentials_are_of_float32() -> None:
    """The interpreter has none of float16."""
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(16, 16), name="x")
    graph = kernel(g_marked(g, x), [InputIterator((None, None, None), None)], [Op(K.EXP, (0,)), Op(K.ACCUM_SUM, (1,))])
    assert "x_0 = tl.load(x_ptr + r16[:, None] * 16 + r16[None, :]).to(tl.float32)\n" in text(graph)
    assert "exp_1 = tl.exp(x_0)\n" in text(graph)


def g_marked(g: mf.Graph, x: mf.Tensor) -> mf.Graph:
    g.mark_output(g.exp(x))
    return g


def test_operands_of_bfloat16_are_named_in_one_place() -> None:
    """The interpreter multiplies their bits, so there they are float32."""
    program, graph = tails.product(16, 32, 16, (16, 16, 16))
    found = triton_file(kit.of_type(graph, mf.bfloat16), kit.of_type(program, mf.bfloat16), kit.H200).text
    assert "BFLOAT16 = tl.constexpr(tl.float32 if INTERPRETED else tl.bfloat16)" in found
    assert "tl.dot(a_0.to(BFLOAT16), b_1.to(BFLOAT16), acc_3," in found
    assert "BFLOAT16" not in triton_file(graph, program, kit.H200).text


def test_a_tile_that_is_multiplied_and_read_elementwise_is_loaded_twice() -> None:
    """Triton 3.6 computed wrong results of one tile of 64 rows in tl.dot and x * x."""
    found = text_of("rmsnorm-b1")
    loads = re.findall(r"X_0(e?) = tl\.load\((?:.*\n)*?.*?(evict_last)?\"?\n?\s*\)(\.to\(tl\.float32\))?", found)
    assert len(loads) == 2
    assert found.count('eviction_policy="evict_last"') == 1
    assert "X_0e * X_0e" in found
    assert "tl.dot(X_0, W_1, " in found


def test_offsets_have_64_bits_where_tensors_are_large() -> None:
    def wide(columns: int) -> str:
        program, graph = tails.product(64, 64, columns, (64, 64, 64))
        return triton_file(graph, program, kit.H200).text

    assert "int64" not in wide(1 << 24)
    found = wide(1 << 26)
    assert "pid_x = tl.program_id(0).to(tl.int64)" in found
    assert "r64 = tl.arange(0, 64).to(tl.int64)" in found


def test_the_counter_of_a_loop_has_64_bits_too() -> None:
    program, graph = tails.product(64, 1 << 26, 64, (64, 1 << 12, 64))
    found = triton_file(graph, program, kit.H200).text
    assert "one = tl.full((), 1, tl.int64)" in found
    assert "        step = lap * one\n" in found


# --- padding ---------------------------------------------------------------------------------------------------------


def test_what_is_summed_has_neutral_elements_in_its_padding() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(12, 12), name="x")
    g.mark_output(g.exp(x))
    along = Attrs(dim=1)
    whole = [InputIterator((None, None, None), None)]
    summed = text(kernel(g, whole, [Op(K.EXP, (0,)), Op(K.SUM, (1,), along), Op(K.ACCUM_SUM, (2,))]))
    assert "sum_2 = tl.sum(tl.where(r16[None, :] < 12, exp_1, 0.0), 1, keep_dims=True)" in summed
    zeros = text(kernel(g, whole, [Op(K.RELU, (0,)), Op(K.SUM, (1,), along), Op(K.ACCUM_SUM, (2,))]))
    assert "sum_2 = tl.sum(relu_1, 1, keep_dims=True)" in zeros
    largest = text(kernel(g, whole, [Op(K.MAX, (0,), along), Op(K.ACCUM_SUM, (1,))]))
    assert '_largest(tl.where(r16[None, :] < 12, x_0, float("-inf")), 1)' in largest
    assert "        mask=(r16[:, None] < 12) & (r16[None, :] < 12),\n        other=0.0,\n" in summed


def test_operands_of_a_product_have_at_least_16_rows_and_columns() -> None:
    program, graph = tails.product(8, 8, 8, (8, 8, 8))
    found = triton_file(graph, program, kit.H200).text
    assert "a_ptr + r16[:, None] * 8 + r16[None, :],\n" in found
    assert "mask=(r16[:, None] < 8) & (r16[None, :] < 8),\n" in found


def test_a_row_is_multiplied_without_tensor_cores() -> None:
    program, graph = tails.product(1, 32, 16, (1, 16, 16))
    found = triton_file(graph, program, kit.H200).text
    assert "tl.dot" not in found
    assert "tl.sum(tl.permute(a_0, [1, 0]) * b_1, 0, keep_dims=True)" in found


def test_a_product_of_concatenations_is_a_sum_of_products() -> None:
    assert "gather" not in text_of("lora-b1")
    assert len(re.findall(r"tl\.dot\(", text_of("lora-b1"))) >= 2


def test_what_has_no_function_is_refused() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(4, 12), name="x")
    g.mark_output(g.exp(x))
    ops = [Op(K.SUM_TO_DIMX, (0,), Attrs(dim=1)), Op(K.ACCUM_SUM, (1,))]
    graph = kernel(g, [InputIterator((None, None, None), None)], ops, reduction_dimx=6)
    with pytest.raises(UnsupportedError, match="expected a reduction to a power of two of elements, got 6"):
        text(graph)


# --- launch options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "launched"),
    [
        (LaunchOptions(), "num_warps=4, num_stages=4"),
        (LaunchOptions(0.5), "num_warps=2, num_stages=4"),
        (LaunchOptions(2.0, 3), "num_warps=8, num_stages=3"),
        (LaunchOptions(64.0, 2), "num_warps=16, num_stages=2"),
        (LaunchOptions(1 / 64), "num_warps=1, num_stages=4"),
    ],
)
def test_launch_options_are_all_that_they_change(options: LaunchOptions, launched: str) -> None:
    program, graph = tails.product(64, 256, 64, (64, 32, 64))
    own, other = (triton_file(graph, program, kit.H200, "", one).text for one in (LaunchOptions(), options))
    assert launched in other
    assert other.replace(launched, "num_warps=4, num_stages=4") == own
    assert triton_file(graph, program, kit.H200).text == own


def test_stages_are_those_of_loops_that_are_pipelined_alone() -> None:
    g = mf.new_kernel_graph()
    x = g.new_input(dims=(64, 64), name="x")
    g.mark_output(g.softmax(x, dim=1))
    plain, asked = (
        triton_file(g.freeze(), g.freeze(), kit.H200, "", LaunchOptions(1.0, stages)).text for stages in (None, 4)
    )
    assert "num_stages=1" in plain
    assert asked == plain


def test_options_say_what_they_are() -> None:
    assert [str(one) for one in (LaunchOptions(), LaunchOptions(0.5, 3))] == [
        "warps x1, own stages",
        "warps x0.5, 3 stages",
    ]


# --- masks -----------------------------------------------------------------------------------------------------------


def test_masks_are_bytes_in_memory_and_numbers_in_registers() -> None:
    g = mf.new_kernel_graph()
    m, x = g.new_input((12, 12), dtype=mf.bool_, name="m"), g.new_input((12, 12), name="x")
    g.mark_output(g.select(m, x, 0))
    whole = [InputIterator((None, None, None), None)] * 2
    ops = [Op(K.LT, (1,), Attrs(value=Fraction(1, 2))), Op(K.MUL, (0, 2)), Op(K.LOGICAL_NOT, (3,))]
    found = text(kernel(g, whole, [*ops, Op(K.ACCUM_MAX, (4,))]))
    assert "((12, 12), (12, 1), torch.bool),  # m" in found
    assert "        other=0,\n    ).to(tl.float32)\n" in found
    assert "lt_2 = (x_1 < 0.5).to(tl.float32)\n" in found
    assert "mul_3 = m_0 * lt_2\n" in found
    assert "logical_not_4 = 1.0 - mul_3\n" in found
    assert "        logical_not_4 != 0.0,\n" in found
    assert "_new((12, 12), torch.bool, m.device, poison)" in found
    assert "values > 0 if dtype == torch.bool else" in found
    assert "torch.bool" not in text_of("attn-b1")


def test_band_masks_are_computed_and_no_parameters() -> None:
    sizes = {"band": "[-11,25]", "rows": 64, "columns": 64, "grid": 4, "loop": 4, "value": 0}
    found = text(from_text(FLASH.format(**sizes)))
    assert "def kernel0(Q_ptr, K_ptr, V_ptr, t4_ptr):" in found
    assert "def run(Q, K, V, poison=False):" in found
    assert "def reference(Q, K, V):" in found
    assert "(pid_y * 16 + r16[:, None] < step * 16 + r16[None, :] + 12)" in found
    assert "(step * 16 + r16[None, :] < pid_y * 16 + r16[:, None] + 26)" in found
    assert found.count("torch.bool") == 1  # of the reference
    assert "  # M" not in found


def test_band_masks_that_torch_reads_are_made() -> None:
    g = mf.new_kernel_graph()
    m, x = g.band((12, 12), -1, 3, name="m"), g.new_input((12, 12), name="x")
    g.mark_output(g.select(m, x, 0))
    found = text(g.freeze())
    assert "def run(x, poison=False):" in found
    assert found.count("m = torch.ones((12, 12), dtype=torch.bool, device=x.device).triu(-1).tril(3)") == 2


def test_what_is_not_chosen_has_no_influence() -> None:
    found = text(masked_attention.fused(mf.float32))
    assert "select_7 = tl.where(M_0 != 0.0, exp_6, 0.0)\n" in found
    assert re.search(r"gt_\d+ = \(S_1 > 0.1\)\.to\(tl\.float32\)\n", found)
    assert re.search(r"eq_\d+ = \(S_1 == 1\.0\)\.to\(tl\.float32\)\n", found)
    one_by_one = text(masked_attention.apart(mf.float16))
    assert re.search(r"= torch\.where\(M, t\d+, 0\.0\)\.contiguous\(\)\n", one_by_one)
    assert "(S.float() > 0.1).contiguous()" in one_by_one


def test_a_product_with_zero_reads_nothing() -> None:
    found = text(masked_attention.fused(mf.float32))
    assert re.search(r"constant_\d+ = tl\.full\(\[16, 32\], 0\.0, tl\.float32\)\n", found)
    assert re.search(r"constant_\d+ = tl\.full\(\[16, 32\], 3\.0, tl\.float32\)\n", found)
    assert "* 0.0\n" not in found.split("def reference")[0]
    assert "torch.zeros_like(S).contiguous()" in text(masked_attention.apart(mf.float32))


def test_maxima_are_not_a_number_where_an_operand_is_none() -> None:
    found = text(masked_attention.fused(mf.float32))
    named = re.findall(r"tl\.(?:maximum|minimum)\(.*", found)
    assert len(named) >= 5
    assert all("propagate_nan=tl.PropagateNan.ALL)" in line for line in named)
    assert '_largest(tl.where(r32[None, :] < 20, select_3, float("-inf")), 1)' in found
    assert "SLOW = tl.constexpr(INTERPRETED)" in found


def test_maxima_under_exponentials_are_finite() -> None:
    bounded = "tl.maximum(max_4, (-3.4028234663852886e+38), propagate_nan=tl.PropagateNan.ALL)"
    assert f"sub_5 = S_1 - {bounded}\n" in text(masked_attention.fused(mf.float32))
    found = text(masked_attention.apart(mf.float16))
    assert re.search(r"\(S\.float\(\) - t\d+\.float\(\)\.clamp_min\(-3\.4028234663852886e\+38\)\)", found)


def test_a_quotient_without_a_divisor_is_zero() -> None:
    assert re.search(
        r"div_no_nan_\d+ = tl\.where\(sum_(\d+) == 0\.0, dot_(\d+) \* 0\.0, dot_\2 / sum_\1\)\n",
        text(masked_attention.fused(mf.float32)),
    )


def test_zeros_of_padding_may_be_lost_to_infinities() -> None:
    """0 times an infinity that is the same along the padding is no zero: it is replaced before it is summed."""
    g = mf.new_kernel_graph()
    x, y = g.new_input((4, 12), name="x"), g.new_input((4, 1), name="y")
    g.mark_output(g.mul(x, y))
    whole = [InputIterator((None, None, None), None)] * 2
    ops = [Op(K.MUL, (0, 1)), Op(K.SUM, (2,), Attrs(dim=1)), Op(K.ACCUM_SUM, (3,))]
    assert "tl.sum(tl.where(r16[None, :] < 12, mul_2, 0.0), 1, keep_dims=True)" in text(kernel(g, whole, ops))


def test_an_operator_that_is_not_known_is_no_norm() -> None:
    with pytest.raises(AssertionError, match="running_max"):
        torch_call(Op(K.RUNNING_MAX, (0,), Attrs(dim=1)), ["x"], [(4, 4)], DType.FLOAT16)


@pytest.mark.parametrize(("kind", "side"), [(K.MAXIMUM, "min"), (K.MINIMUM, "max")])
def test_a_number_that_bounds_is_one_of_float32(kind: OpKind, side: str) -> None:
    """Not every such number is one of the element type: of float16, -1e38 is not."""
    text = torch_call(Op(kind, (0,), Attrs(value=Fraction(-(10**38)))), ["x"], [(4, 4)], DType.FLOAT16)
    assert text == f"x.float().clamp_{side}((-1e+38)).to(x.dtype).contiguous()"
