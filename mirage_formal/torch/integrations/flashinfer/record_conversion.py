"""Conversion of a program, its kernels and their measurements to FlashInfer-Bench records; needs no torch."""

from __future__ import annotations

import keyword
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from mirage_formal.codegen.executable import LAUNCH_FILE, SCHEMA, VERSION, Executable
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.formats.json import embed
from mirage_formal.graph.graph import Input, KernelGraph
from mirage_formal.graph.types import row_major
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import KernelLaunch, LaunchRecord, MeasureRecord, NumericsRecord
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.torch.integrations.flashinfer.records import (
    BenchEvaluation,
    BenchTrace,
    BenchWorkload,
    BuildSpec,
    ConstantAxis,
    Correctness,
    Definition,
    Environment,
    Performance,
    RandomInput,
    Solution,
    SourceFile,
    TensorSpec,
)
from mirage_formal.torch.modules.pytorch_source import torch_source

AUTHOR: Final = "mirage_formal"
OP_TYPE: Final = "fused"
_UNIT: Final = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")  # the namespace for names of objects, RFC 4122
_ENTRY: Final = "main.py"
_KERNELS: Final = "kernels"
_MAIN: Final = '''"""Kernels of a proved candidate of mirage_formal, launched by it; nothing is searched."""

from pathlib import Path

from mirage_formal.device.launch import Optimized
from mirage_formal.codegen.executable import load_executable

_optimized = Optimized.of(load_executable(Path(__file__).parent / "{kernels}"))


def run({names}):
    return _optimized({given})
'''


@dataclass(frozen=True, slots=True)
class NamedProgram:
    """A program whose input names are valid Python identifiers.

    Attributes:
        program: The program.
        title: Name of the program.
        names: Names of the inputs that callers pass.
        orders: For each of them, its dims in memory order.
    """

    program: KernelGraph
    title: str
    names: tuple[str, ...]
    orders: tuple[tuple[int, ...], ...]

    @property
    def inputs(self) -> tuple[tuple[int, Input], ...]:
        """The inputs that callers pass, with their numbers: all but band masks."""
        return _passed_inputs(self.program)

    @property
    def views(self) -> tuple[str, ...]:
        """Expressions of these inputs, as permutations of the tensors in memory order."""
        return tuple(
            name if order == tuple(sorted(order)) else f"{name}.permute({[order.index(d) for d in range(len(order))]})"
            for name, order in zip(self.names, self.orders, strict=True)
        )


def name_inputs(program: KernelGraph, title: str) -> NamedProgram:
    """Return a program with identifiers for the inputs that callers pass.

    Raises:
        UnsupportedError: An input is not dense in memory, which the records cannot describe.
    """
    passed = _passed_inputs(program)
    orders = tuple(_order(item) for _, item in passed)
    names: list[str] = []
    for number, item in passed:
        plain = item.name.isidentifier() and not keyword.iskeyword(item.name) and item.name not in ("run", "torch", "F")
        name = item.name if plain and not re.fullmatch(r"t\d+", item.name) else f"input_{number}"
        names.append(name if name not in names else f"input_{number}")
    return NamedProgram(program, title, tuple(names), orders)


def _passed_inputs(program: KernelGraph) -> tuple[tuple[int, Input], ...]:
    return tuple((number, item) for number, item in enumerate(program.inputs) if item.band is None)


def _order(item: Input) -> tuple[int, ...]:
    shape = item.tensor.shape
    order = tuple(sorted(range(len(shape)), key=lambda d: (-item.strides[d], d)))
    dense = row_major(tuple(shape[d] for d in order))
    if any(shape[d] > 1 and item.strides[d] != step for d, step in zip(order, dense, strict=True)):
        what = f"expected an input that lies densely in memory, got strides {list(item.strides)} of {list(shape)}"
        raise UnsupportedError(
            what, where=item.name, hint="FlashInfer-Bench has no strides: give it a tensor of its own"
        )
    return order


def definition(given: NamedProgram, op_type: str = OP_TYPE) -> Definition:
    """Return the FlashInfer-Bench definition of a program."""
    program, types = given.program, kernel_types(given.program)
    axes: dict[str, ConstantAxis] = {}

    def spec(shape: Sequence[int], dtype: str) -> TensorSpec:
        for n in shape:
            axes[f"n{n}"] = ConstantAxis(n)
        return TensorSpec(tuple(f"n{n}" for n in shape), dtype)

    inputs = {
        name: spec([item.tensor.shape[d] for d in order], item.tensor.dtype.value)
        for name, (_, item), order in zip(given.names, given.inputs, given.orders, strict=True)
    }
    found = [types[number] for number in program.outputs]
    outputs = {f"output_{i}" if len(found) > 1 else "output": spec(x.shape, x.dtype.value) for i, x in enumerate(found)}
    return Definition(
        name=_definition_name(given, op_type),
        op_type=op_type,
        description=f"{given.title}: a program of {len(program.ops)} operators of mirage_formal.",
        tags=("status:draft", "fused"),
        axes=axes,
        inputs=inputs,
        outputs=outputs,
        reference=_reference(given),
    )


def _definition_name(given: NamedProgram, op_type: str) -> str:
    title = re.sub(r"[^a-z0-9]+", "_", given.title.lower()).strip("_")
    return f"{op_type}_{title}_{digest(given.program)[:12]}"


def _reference(given: NamedProgram) -> str:
    """Return Python text that computes the program with torch, one operator per line."""
    lines = torch_source(given.program).splitlines()
    body = lines[1:-1]
    binds = [f"    t{i} = {view}" for (i, _), view in zip(given.inputs, given.views, strict=True)]
    outputs = lines[-1].strip().removeprefix("return (").removesuffix(",)")
    head = ["import torch", "import torch.nn.functional as F", "", "", f"def run({', '.join(given.names)}):"]
    return "\n".join([*head, *binds, *body, f"    return {outputs}", ""])


def solution(given: NamedProgram, made: Executable, target: str, said: str, op_type: str = OP_TYPE) -> Solution:
    """Return the kernels of a candidate as a solution: CUDA C++ and its launcher, compiled where it runs.

    Args:
        given: The program.
        made: Its kernels.
        target: The GPU that they were planned for.
        said: Description of the candidate's evidence.
        op_type: Operation type of the definition.
    """
    launches = tuple(
        msgspec.structs.replace(one, cubins={}) if isinstance(one, KernelLaunch) else one for one in made.launches
    )
    made = replace(made, launches=launches, files={name: text.encode() for name, text in made.sources.items()})
    record = LaunchRecord(SCHEMA, VERSION, made.digest, embed(made.graph), embed(made.program), launches, made.outputs)
    main = _MAIN.format(kernels=_KERNELS, names=", ".join(given.names), given=", ".join(given.views))
    files = {_ENTRY: main, f"{_KERNELS}/{LAUNCH_FILE}": msgspec.json.encode(record).decode()}
    files |= {f"{_KERNELS}/{name}": text for name, text in made.sources.items()}
    return Solution(
        name=f"{AUTHOR}_{made.digest[:12]}",
        definition=_definition_name(given, op_type),
        description=said,
        author=AUTHOR,
        spec=BuildSpec(
            target_hardware=(f"NVIDIA_{target.upper()}",),
            entry_point=f"{_ENTRY}::run",
            dependencies=("torch", "cupy", "mirage_formal"),
        ),
        sources=tuple(SourceFile(path, content) for path, content in files.items()),
    )


def workload(given: NamedProgram, op_type: str = OP_TYPE) -> BenchTrace:
    """Return the only workload of a program, with random inputs, because its definition has no variable axes."""
    name = _definition_name(given, op_type)
    work = BenchWorkload(uuid=str(uuid.uuid5(_UNIT, name)), axes={}, inputs={one: RandomInput() for one in given.names})
    return BenchTrace(definition=name, workload=work)


def trace_record(
    work: BenchTrace,
    solved: Solution,
    numerics: NumericsRecord,
    measured: MeasureRecord,
    libs: Mapping[str, str],
    now: str,
) -> BenchTrace | None:
    """Return the record of a measurement; None if errors are not finite, or the comparison is undecided.

    Args:
        work: The workload.
        solved: The measured solution.
        numerics: Accuracy of its results.
        measured: Its measured time.
        libs: Versions of the libraries that it ran with.
        now: The time of the export, as in ISO 8601; the records have none of their own.
    """
    outputs = [one for scale in numerics.scales for one in scale.outputs]
    relative, absolute = ([getattr(o, f"max_{kind}_error") for o in outputs] for kind in ("relative", "absolute"))
    if numerics.answer == "undecided" or not outputs or any(error is None for error in (*relative, *absolute)):
        return None
    right = numerics.answer == "within"
    scales = ", ".join(f"{scale.scale:g}" for scale in numerics.scales)
    log = (
        f"Results beside float64 at input scales {scales}: {numerics.answer} the tolerance of mirage_formal. "
        f"Time: median of {measured.replays} replays of a CUDA graph of {measured.calls} calls over {measured.sets} "
        "sets of inputs. The reference was not timed: its latency and the speedup are 0. The timestamp is the export's."
    )
    evaluation = BenchEvaluation(
        status="PASSED" if right else "INCORRECT_NUMERICAL",
        environment=Environment(measured.device.replace(" ", "_"), dict(libs)),
        timestamp=now,
        log=log,
        correctness=Correctness(max(relative), max(absolute)),
        performance=Performance(measured.us / 1000) if right else None,
    )
    return msgspec.structs.replace(work, solution=solved.name, evaluation=evaluation)


__all__ = ["AUTHOR", "OP_TYPE", "NamedProgram", "definition", "name_inputs", "solution", "trace_record", "workload"]
