"""Targets: machine descriptions of GPUs, read from gpu/targets/*.toml.

Every figure carries its source as a comment in the file. The figures under ``[model]`` are measured or fitted; they
order candidates in the cost model and take no part in any verdict.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mirage_formal.support.errors import TargetError
from mirage_formal.support.resources import data_dir

_MAX_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """Hard limits of one device; a graph beyond them cannot be launched.

    Bytes, threads and blocks are per block or per SM as named; ``grid`` is the largest launch grid (x, y, z).
    """

    shared_bytes_per_block: int
    shared_bytes_per_sm: int
    shared_reserved_per_block: int
    registers_per_sm: int
    threads_per_block: int
    threads_per_sm: int
    blocks_per_sm: int
    grid: tuple[int, int, int]

    def held(self, threads: int, shared_bytes: int) -> int:
        """Return the number of blocks of this size that an SM holds at a time, register use aside."""
        return min(
            self.blocks_per_sm,
            self.threads_per_sm // threads,
            self.shared_bytes_per_sm // (shared_bytes + self.shared_reserved_per_block),
        )


@dataclass(frozen=True, slots=True)
class CostModel:
    """Measured or fitted figures of the ranking model (see codegen/cost.py for how they are used).

    ``step_us``: the time of one iteration on its multiprocessor beside arithmetic: waits, barriers, the issue of
    copies.
    ``dependent_launch_us``: the launch time of a generated kernel that follows another one of the same call and starts
    while that one ends (``launch_us`` if a GPU or its driver does not support it).
    ``block_us``: the time between two block starts of a multiprocessor.
    ``l2_reread_share``: the time of a byte from L2 that another block has read, relative to any other byte.
    """

    bandwidth_efficiency: float
    launch_us: float
    latency_us: float
    tensor_efficiency: float
    tensor_tile: tuple[int, int, int]
    l2_bandwidth_gbs: float
    sm_bandwidth_gbs: float
    iteration_us: float
    matmul_us: float
    operator_us: float
    library_efficiency: float
    scalar_step_clocks: float
    scalar_step_slots: float
    element_copy_slots: float
    step_us: float
    dependent_launch_us: float
    block_us: float
    l2_reread_share: float


@dataclass(frozen=True, slots=True)
class Target:
    """One GPU.

    Attributes:
        name: Short name, that of its file.
        title: Name as sold.
        arch: The architecture name of compilers.
        sms: Streaming multiprocessors.
        clock_ghz: Highest SM clock.
        device_bytes: Device memory.
        bandwidth_gbs: Peak bandwidth of device memory in GB/s.
        l2_bytes: L2 cache.
        tensor_tflops: Peak of 16-bit products with 32-bit accumulation, dense.
        vector_tflops: Peak of 32-bit arithmetic outside the tensor cores.
        special_per_clock: Exponentials, roots and quotients per SM and clock.
        shared_bandwidth_per_clock: Bytes of shared memory per SM and clock.
        limits: Hard limits.
        model: Figures of the ranking model.
    """

    name: str
    title: str
    arch: str
    sms: int
    clock_ghz: float
    device_bytes: int
    bandwidth_gbs: float
    l2_bytes: int
    tensor_tflops: float
    vector_tflops: float
    special_per_clock: int
    shared_bandwidth_per_clock: int
    limits: TargetLimits
    model: CostModel

    @property
    def warpgroups(self) -> bool:
        """Return whether it has products of warpgroups (wgmma): PTX ISA, target sm_90a."""
        return self.arch == "sm_90a"


def target_names() -> tuple[str, ...]:
    """Return the names of the targets that come with the project, sorted."""
    return tuple(sorted(path.stem for path in (data_dir("gpu") / "targets").glob("*.toml")))


def load_target(name: str) -> Target:
    """Return a target by name ("h200", "h100", "a100", "rtx4090") or from a TOML file of the same form.

    Raises:
        TargetError: The name is unknown, or the file is malformed; the text names the field, the expected and the
            actual value.
    """
    path = Path(name) if name.endswith(".toml") else data_dir("gpu") / "targets" / f"{name}.toml"
    hint = f"use one of {', '.join(target_names())}, or the path of a .toml file of the same form"
    if (not name.endswith(".toml") and name not in target_names()) or not path.is_file():
        raise TargetError(f"expected a known target, got {name!r}", where="target", hint=hint)
    raw = path.read_bytes()[: _MAX_BYTES + 1]
    if len(raw) > _MAX_BYTES:
        raise TargetError(f"expected at most {_MAX_BYTES} bytes, got more", where=str(path), hint=hint)
    try:
        table = tomllib.loads(raw.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TargetError(f"expected TOML, got: {error}", where=str(path), hint="correct the file") from None
    limits = TargetLimits(**_fields(TargetLimits, _table(table, "limits", path), f"{path}: [limits]"))
    model = CostModel(**_fields(CostModel, _table(table, "model", path), f"{path}: [model]"))
    return Target(**_fields(Target, table, str(path)), limits=limits, model=model)


def _table(table: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    value = table.pop(name, None)
    if not isinstance(value, dict):
        raise TargetError(f"expected a table [{name}], got none", where=str(path), hint="copy one from another target")
    return value


def _fields(kind: type, table: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the values of ``table`` for the fields of ``kind``, each checked: present, of its type and positive."""
    wanted = {field.name: str(field.type) for field in fields(kind) if field.name not in ("limits", "model")}
    if extra := sorted(set(table) - set(wanted)):
        raise TargetError(f"expected only {sorted(wanted)}, got {extra} as well", where=where, hint="remove them")
    return {name: _value(table.get(name), typ, f"{where}: {name}") for name, typ in wanted.items()}


def _value(value: object, typ: str, where: str) -> object:
    """Return ``value`` as the type that a field's annotation names: str, int, float or a triple of int."""
    hint = f"every field is required, as in {data_dir('gpu') / 'targets' / 'h200.toml'}"
    good: object = None
    if (typ == "str" and isinstance(value, str) and value) or (typ == "int" and type(value) is int and value > 0):
        good = value
    elif typ == "float" and type(value) in (int, float) and 0 < float(str(value)) < 1e18:
        good = float(str(value))
    elif typ.startswith("tuple") and isinstance(value, list) and len(value) == 3:
        good = tuple(value) if all(type(x) is int and x > 0 for x in value) else None
    if good is None:
        raise TargetError(f"expected a positive {typ} (or a non-empty text), got {value!r}", where=where, hint=hint)
    return good
