"""Triton files of µGraphs in processes of their own: run by Triton's interpreter, or compiled ahead of time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from mirage_formal.codegen.numerics import result_comparison
from mirage_formal.codegen.target import load_target
from mirage_formal.codegen.triton.file import TritonFile, triton_file
from mirage_formal.graph.graph import GraphDefined, KernelGraph, Op, ThreadDefined
from mirage_formal.graph.types import DTensor, DType
from mirage_formal.kernel_build.stable_forms import stabilize_proved

H200: Final = load_target("h200")
ARCHS: Final = (80, 90, 100)
_CHILD: Final = Path(__file__).with_name("triton_child.py")
_POINTERS: Final = {DType.FLOAT16: "*fp16", DType.BFLOAT16: "*bf16", DType.FLOAT32: "*fp32", DType.BOOL: "*i1"}


@dataclass(frozen=True, slots=True)
class Case:
    """A µGraph as a Triton file.

    Attributes:
        name: Its name, that of its file.
        program: The program.
        graph: The form of the µGraph that is launched.
        file: The file.
    """

    name: str
    program: KernelGraph
    graph: KernelGraph
    file: TritonFile


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a file in the interpreter.

    Attributes:
        results: What ``run`` returned, if it was called.
        references: What ``reference`` returned then.
        code: What its ``main`` returned.
        said: What that printed, or how the file failed.
    """

    results: tuple[Any, ...] = ()
    references: tuple[Any, ...] = ()
    code: int = 1
    said: str = ""


def case(name: str, program: KernelGraph, graph: KernelGraph, *, raw: bool = False) -> Case:
    """A case; exponentials get their running maxima before, as for CUDA C++, unless it is to be taken as it is."""
    form = graph if raw else stabilize_proved(graph).graph
    return Case(name, program, form, triton_file(form, program, H200))


def interpreted(cases: Sequence[Case], root: Path, given: Mapping[str, Sequence[Any]] | None = None) -> dict[str, Ran]:
    """The files of cases in one process of the interpreter; ``given`` has inputs for ``run`` by name."""
    for one in cases:
        (root / f"{one.name}.py").write_text(one.file.text, encoding="utf-8")
        if given is not None and one.name in given:
            pairs = zip(one.program.inputs, given[one.name], strict=True)
            passed = [array for item, array in pairs if item.band is None]
            np.savez(root / f"{one.name}.npz", **{f"x{i}": array for i, array in enumerate(passed)})
    child("interpret", root, {"TRITON_INTERPRET": "1"})
    found: dict[str, Ran] = {}
    for one in cases:
        failed = root / f"{one.name}.failed"
        if failed.exists():
            found[one.name] = Ran(said=failed.read_text())
            continue
        with np.load(root / f"{one.name}.out.npz") as arrays:
            counts = range(len(one.program.outputs))
            results = tuple(arrays[f"run{i}"] for i in counts if f"run{i}" in arrays)
            references = tuple(arrays[f"reference{i}"] for i in counts if f"reference{i}" in arrays)
            found[one.name] = Ran(results, references, int(arrays["main"]), str(arrays["said"]))
    return found


def compiled(
    cases: Sequence[Case], root: Path, *, archs: Sequence[int] = ARCHS, text: bool = False
) -> dict[str, list[dict[str, Any]] | str]:
    """What Triton's compiler made of the functions of cases, or how it failed; with ``text`` its first form too."""
    for one in cases:
        (root / f"{one.name}.py").write_text(one.file.text, encoding="utf-8")
        rows = [
            {
                "name": made.name,
                "types": [_POINTERS[dtype] for dtype in made.types],
                "warps": made.warps,
                "stages": made.stages,
                "archs": list(archs),
                "text": text,
            }
            for made in one.file.functions
        ]
        (root / f"{one.name}.json").write_text(json.dumps(rows))
    child("compile", root, {"TRITON_CACHE_DIR": str(root / "cache")})
    found: dict[str, list[dict[str, Any]] | str] = {}
    for one in cases:
        failed = root / f"{one.name}.failed"
        built = root / f"{one.name}.built.json"
        found[one.name] = failed.read_text() if failed.exists() else json.loads(built.read_text())
    return found


def child(mode: str, root: Path, more: Mapping[str, str]) -> None:
    """One process of Triton's."""
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"} | dict(more)
    done = subprocess.run(
        [sys.executable, str(_CHILD), mode, str(root)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr


def inputs(program: KernelGraph, scale: float = 1.0, seed: int = 0) -> list[Any]:
    """Seeded inputs, which the element types hold."""
    return result_comparison.draw_all(program, seed, scale)


def of_type(graph: KernelGraph, dtype: DType) -> KernelGraph:
    """A µGraph of one element type with tensors of another, casts to 16 bits included."""

    def op(one: Any) -> Any:
        if isinstance(one, GraphDefined):
            return replace(one, graph=replace(one.graph, ops=tuple(op(inner) for inner in one.graph.ops)))
        if isinstance(one, ThreadDefined):
            return replace(one, graph=replace(one.graph, ops=tuple(op(inner) for inner in one.graph.ops)))
        assert isinstance(one, Op)
        if one.attrs.dtype in (None, DType.FLOAT32):
            return one
        return replace(one, attrs=replace(one.attrs, dtype=dtype))

    own = tuple(replace(item, tensor=DTensor(item.tensor.shape, dtype)) for item in graph.inputs)
    return replace(graph, inputs=own, ops=tuple(op(one) for one in graph.ops))
