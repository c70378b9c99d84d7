"""Triton files: functions of Triton, ``run`` that launches them, and a self-check against the program in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from mirage_formal.codegen.program.lines import LineRange, merge_lines
from mirage_formal.codegen.target import Target
from mirage_formal.codegen.triton.elementwise_text import HELPERS as OWN_HELPERS
from mirage_formal.codegen.triton.host import TORCH, HostCalls, host_calls, input_names, mask_lines
from mirage_formal.codegen.triton.kernel_function import Function
from mirage_formal.codegen.triton.launch_options import OWN, LaunchOptions
from mirage_formal.codegen.triton.torch_reference import HELPERS, torch_reference
from mirage_formal.graph.graph import Input, KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import kernel_types

_BFLOAT: Final = """#: What is multiplied: Triton's interpreter would take the bits of bfloat16 for numbers.
BFLOAT16 = tl.constexpr(tl.float32 if INTERPRETED else tl.bfloat16)
"""
_NEW: Final = '''def _new(shape, dtype, device, poison):
    """Memory for a tensor; with poison it is NaN, so that what nobody writes is seen."""
    made = torch.empty(shape, dtype=dtype, device=device)
    return made.fill_(float("nan")) if poison else made
'''
_EXPECT: Final = '''def _expect(name, tensor, shape, strides, dtype):
    """An input has to be as it was declared."""
    assert tuple(tensor.shape) == shape, f"{name}: expected shape {shape}, got {tuple(tensor.shape)}"
    assert tensor.dtype == dtype, f"{name}: expected {dtype}, got {tensor.dtype}"
    same = all(n == 1 or a == b for n, a, b in zip(shape, tensor.stride(), strides))
    assert same, f"{name}: expected strides {strides}, got {tensor.stride()}"
'''
#: Relative error of the norm that the file's own check allows, by the least precise element type: 4 unit roundoffs of
#: 16-bit types; of float32, whose sums of n terms are off by about sqrt(n) of them, 64.
_TOLERANCES: Final = {DType.FLOAT16: 4 * 2.0**-11, DType.BFLOAT16: 4 * 2.0**-8, DType.FLOAT32: 64 * 2.0**-24}
_MAIN: Final = '''def inputs(seed, scale, positive, device):
    """Seeded inputs, about normal; positive ones for programs with roots and logarithms."""
    torch.manual_seed(seed)
    made = []
    for shape, strides, dtype in INPUTS:
        count = 1 + sum((n - 1) * step for n, step in zip(shape, strides))
        values = scale * torch.randn(count)
        values = values.abs() + 0.1 if positive else values
        made.append(values.to(dtype).to(device).as_strided(shape, strides))
    return made


def _error(found, wanted):
    """The largest relative error of the outputs, as the norm of the difference over the norm."""
    pairs = zip(found, wanted)
    return max(float((one.double() - two).norm() / two.norm().clamp_min(1e-30)) for one, two in pairs)


def _drawn(device):
    """Inputs at which the outputs are numbers that the element types hold, if such are found, and these outputs."""
    given, wanted = [], []
    for positive in (False, True):
        for scale in (1.0, 0.25, 0.0625):
            given = inputs(0, scale, positive, device)
            wanted = _listed(reference(*(one.double() for one in given)))
            if all(bool((one.abs() < 2.0**15).all()) for one in wanted):
                return given, wanted
    return given, wanted


def main():
    """Compare with float64: once, and on a GPU in 12 replays of a CUDA graph as well. 0 if all is well, else 1."""
    if not (INTERPRETED or torch.cuda.is_available()):
        print("expected a GPU, or TRITON_INTERPRET=1 in the environment")
        return 1
    device = "cpu" if INTERPRETED else "cuda"
    given, wanted = _drawn(device)
    worst = _error(_listed(run(*given, poison=True)), wanted)
    if not INTERPRETED:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = _listed(run(*given, poison=True))
        for _ in range(12):
            graph.replay()
            error = _error(found, wanted)
            worst = error if not error <= worst else worst
    right = worst <= TOLERANCE
    print(f"{'right' if right else 'WRONG'}: relative error {worst:.2e}, allowed {TOLERANCE:.2e}, on {device}")
    return 0 if right else 1


def _listed(found):
    return list(found) if isinstance(found, tuple) else [found]
'''
#: A line of it, and its replacement where there are masks.
_MASKS: Final = (
    "        values = values.abs() + 0.1 if positive else values\n",
    "        values = values > 0 if dtype == torch.bool else values.abs() + 0.1 if positive else values\n",
)
#: Lines of ``run`` before it looks at its inputs.
_HEAD: Final = 2
#: The main guard of the file; this module is no command itself.
_GUARD: Final = "if __name__ == {!r}:\n    raise SystemExit(main())\n"


@dataclass(frozen=True, slots=True)
class TritonFile:
    """A Triton file.

    Attributes:
        text: Its text.
        functions: Its functions, in the order of their launches.
        lines: Its lines by part of the µGraph; nodes are "op2" for an operator of the kernel graph and "op2.it0" for a
            node inside it.
    """

    text: str
    functions: tuple[Function, ...]
    lines: tuple[LineRange, ...]


def triton_file(
    graph: KernelGraph, program: KernelGraph, target: Target, title: str = "", options: LaunchOptions = OWN
) -> TritonFile:
    """Return a Triton file that computes a program as a µGraph does.

    The file is not proved, and nothing is compiled here: neither torch nor Triton has to be installed.

    Args:
        graph: The µGraph that is launched: with running maxima, if it needs them.
        program: The program that it is equal to, which the file computes in float64 to check itself.
        target: The GPU whose cost model chooses tiles of predefined operators.
        title: The first line of the file's docstring.
        options: The launch options of its functions.

    Raises:
        UnsupportedError: A kernel has no function of Triton; names it.
    """
    made = host_calls(graph, target, options)
    passed = [item for item in program.inputs if item.band is None]
    names = input_names(program.inputs)
    known = torch_reference(program, names)
    functions = [one.text for one in made.functions]
    head = [
        f'"""{title or "A tensor program as functions of Triton."}\n\nRun it to check it: on a GPU, or anywhere with '
        f'TRITON_INTERPRET=1 in the environment.\n"""\n',
        "import torch\nimport triton\n" + ("import triton.language as tl\n" if functions else ""),
        "INTERPRETED = bool(triton.knobs.runtime.interpret)",
        _inputs(passed),
        f"TOLERANCE = {_TOLERANCES[_least_precise(graph)]!r}",
    ]
    if any("BFLOAT16)" in text for text in functions):
        head.append(_BFLOAT.rstrip("\n"))
    helpers = {name for one in made.functions for name in one.helpers}
    own = [text for name, text in OWN_HELPERS.items() if name in helpers]
    if any("SLOW" in text for text in own):
        head.append("SLOW = tl.constexpr(INTERPRETED)")
    parts = ["\n".join(head) + "\n"]
    parts += own
    at = len(parts)
    parts += functions
    parts += [_NEW] if any("_new(" in line for line in made.lines) else []
    parts += [_EXPECT, _run(made.names, made.lines, made.results)]
    lines = _lines(made, _starts(parts)[at:], _starts(parts)[-1])
    parts += [HELPERS[name] for name in known.helpers]
    doc = '    """The program in float64, operator by operator."""'
    masks = (f"{line}.double()" for _, line in mask_lines(program.inputs))
    body = [f"    {line}" for line in (*masks, *known.lines, f"return {_tuple(known.results)}")]
    given = (name for name, item in zip(names, program.inputs, strict=True) if item.band is None)
    parts.append("\n".join([f"def reference({', '.join(given)}):", doc, *body]) + "\n")
    main = _MAIN if all(item.tensor.dtype.floating for item in passed) else _MAIN.replace(*_MASKS)
    text = "\n\n".join([*parts, main, _GUARD.format("__main__").replace("'", '"')])
    return TritonFile(text, made.functions, lines)


def _starts(parts: Sequence[str]) -> list[int]:
    """Return the first line of each part of the file; two empty lines are between parts."""
    return list(accumulate((part.count("\n") + 2 for part in parts[:-1]), initial=1))


def _lines(made: HostCalls, functions: Sequence[int], run: int) -> tuple[LineRange, ...]:
    """Return the lines of the file by parts of the µGraph.

    Args:
        made: The functions and calls.
        functions: First lines of the functions.
        run: First line of ``run``.
    """
    found: list[LineRange] = []
    for one, operator, start in zip(made.functions, made.operators, functions, strict=False):
        for piece in one.pieces:
            nodes = tuple(f"op{operator}.{node}" for node in piece.nodes) or (f"op{operator}",)
            found.append(LineRange(piece.first + start - 1, piece.last + start - 1, nodes, piece.does))
    return (*found, *merge_lines(made.about, run + _HEAD + len(made.names)))


def _least_precise(graph: KernelGraph) -> DType:
    """Return the least precise floating element type of the graph's tensors."""
    dtypes = {tensor.dtype for tensor in kernel_types(graph) if tensor.dtype.floating}
    return max(dtypes, key=lambda dtype: _TOLERANCES[dtype])


def _inputs(inputs: Sequence[Input]) -> str:
    rows = [
        f"    ({item.tensor.shape}, {item.strides}, {TORCH[item.tensor.dtype]}),  # {_printable_name(item)}"
        for item in inputs
    ]
    return "#: Shape, strides in elements and element type of each input.\nINPUTS = (\n" + "\n".join(rows) + "\n)"


def _printable_name(item: Input) -> str:
    return "".join(c if c.isprintable() else "?" for c in item.name)[:60]


def _run(names: Sequence[str], lines: Sequence[str], results: Sequence[str]) -> str:
    found = [f"def run({', '.join(names)}, poison=False):", '    """Compute the outputs from the inputs."""']
    found += [f'    _expect("{name}", {name}, *INPUTS[{number}])' for number, name in enumerate(names)]
    found += [f"    {line}" for line in lines]
    found.append(f"    return {_tuple(results)}")
    return "\n".join(found) + "\n"


def _tuple(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names)
