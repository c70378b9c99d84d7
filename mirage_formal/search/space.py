"""Reader of search spaces from search/*.toml: the presets, and files of the user's own.

In a file -1 stands for "replicated" (imaps), "unmapped" (omaps) or "not split" (fmaps), and "all" for every value that
fits. In lists of operators "functions" stands for every function of one element. The rules that hold in every space are
listed in search/bounds.py.
"""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from mirage_formal.graph.ops import FUNCTIONS, SPECS, Level, OpKind
from mirage_formal.search.bounds import (
    SEARCHABLE,
    ExtentRules,
    Extents,
    SearchSpace,
    SpaceLimits,
    as_tuples,
    divisors,
)
from mirage_formal.support.errors import SpaceError
from mirage_formal.support.resources import data_dir

__all__ = [
    "ExtentRules",
    "Extents",
    "SearchSpace",
    "SpaceLimits",
    "divisors",
    "load_space",
    "parse_space",
    "preset_names",
]

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Dim = Annotated[int, msgspec.Meta(ge=-1)]
_Triple = tuple[_Positive, _Positive, _Positive]
_MapTriple = tuple[_Dim, _Dim, _Dim]
_All = Literal["all"]
#: The name of a group in lists of operators, and its members: every function of one element.
_GROUP: Final = "functions"
_FUNCTIONS: Final = tuple(kind for kind in OpKind if kind in FUNCTIONS)


class _Limits(msgspec.Struct, forbid_unknown_fields=True):
    shared_bytes: _Positive
    device_bytes: _Positive


class _Rules(msgspec.Struct, forbid_unknown_fields=True):
    imaps: _All | list[_MapTriple]
    omaps: _All | list[_MapTriple]
    fmaps: _All | list[_Dim]
    forloop_ranges: _All | list[_Positive]
    min_blocks: _Positive
    max_blocks: _Positive
    grids: _All | list[_Triple] = "all"
    grid_divisors: list[_Positive] = []
    batch_divisors: list[_Positive] = []
    batch_grids: list[tuple[_Positive, _Positive]] = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    kernel_ops: list[str]
    block_ops: list[str]
    max_kernel_ops: _Positive
    max_block_ops: _Positive
    max_graph_defined: Annotated[int, msgspec.Meta(ge=0)]
    max_block_inputs: _Positive
    max_reread: Annotated[int, msgspec.Meta(ge=0)]
    fold_tiles: bool
    max_block_outputs: _Positive
    extents: Extents
    block_dims: list[_Triple]
    reduction_dimx: list[_Positive]
    keep: _Positive
    limits: _Limits
    free: _Rules
    paper: _Rules
    max_axes_per_split: _Positive = 1
    max_states: _Positive | None = None


def preset_names() -> tuple[str, ...]:
    """Return the names of the presets in the data directory search/."""
    return tuple(sorted(path.stem for path in data_dir("search").glob("*.toml")))


def _operators(names: list[str], level: Level, where: str) -> tuple[OpKind, ...]:
    """Return the operators of a list, each once, with the members of a group in its place."""
    found: list[OpKind] = []
    for position, name in enumerate(names):
        if name not in (*OpKind, _GROUP):
            allowed = ", ".join(sorted([*OpKind, _GROUP]))
            raise SpaceError(f"expected one of {allowed}, got {name!r}", where=f"{where}[{position}]")
        for kind in _FUNCTIONS if name == _GROUP else (OpKind(name),):
            if level not in SPECS[kind].levels or kind not in SEARCHABLE:
                known = sorted(k.value for k in SEARCHABLE if level in SPECS[k].levels)
                raise SpaceError(
                    f"expected operators that a search can propose at {level.value} level, got {kind.value!r}",
                    where=where,
                    hint=f"choose from {', '.join(known)}",
                )
            found.append(kind)
    return tuple(dict.fromkeys(found))


def load_space(name_or_path: str) -> SearchSpace:
    """Read a preset by name, or a space from a TOML file (anything that ends in .toml or has a path separator).

    Raises:
        SpaceError: Unknown preset, unreadable file, unknown key, wrong type or a bound out of range.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml" and path.name == name_or_path:
        if name_or_path not in preset_names():
            known = ", ".join(preset_names())
            raise SpaceError(
                f"unknown preset: expected one of {known}, got {name_or_path!r}",
                where="config",
                hint="give one of these names or the path of a .toml file",
            )
        path = data_dir("search") / f"{name_or_path}.toml"
    try:
        text = path.read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise SpaceError(
            f"expected a readable TOML file, got: {reason}", where=str(path), hint="check the path"
        ) from None
    return parse_space(text, path.stem, str(path))


@lru_cache(maxsize=16)
def parse_space(text: str, name: str, where: str) -> SearchSpace:
    """Read a space from TOML text; ``where`` names the source in errors."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpaceError(f"expected TOML, got: {error}", where=where, hint="fix the syntax") from None
    try:
        file = msgspec.convert(data, _File)
    except msgspec.ValidationError as error:
        raise _space_error(str(error), data, where) from None
    _check_file(file, where)
    return SearchSpace(
        name=name,
        kernel_ops=_operators(file.kernel_ops, Level.KERNEL, f"{where}: kernel_ops"),
        block_ops=_operators(file.block_ops, Level.BLOCK, f"{where}: block_ops"),
        max_kernel_ops=file.max_kernel_ops,
        max_block_ops=file.max_block_ops,
        max_graph_defined=file.max_graph_defined,
        max_block_inputs=file.max_block_inputs,
        max_reread=file.max_reread,
        max_axes_per_split=file.max_axes_per_split,
        fold_tiles=file.fold_tiles,
        max_block_outputs=file.max_block_outputs,
        extents=file.extents,
        free=_rules(file.free),
        paper=_rules(file.paper),
        block_dims=tuple(file.block_dims),
        reduction_dimx=tuple(file.reduction_dimx),
        shared_bytes=file.limits.shared_bytes,
        device_bytes=file.limits.device_bytes,
        keep=file.keep,
        max_states=file.max_states,
    )


def _rules(rules: _Rules) -> ExtentRules:
    return ExtentRules(
        grids=None if rules.grids == "all" else tuple(rules.grids),
        grid_divisors=tuple(rules.grid_divisors),
        batch_divisors=tuple(rules.batch_divisors),
        batch_grids=tuple(rules.batch_grids),
        imaps=None if rules.imaps == "all" else as_tuples(rules.imaps),
        omaps=None if rules.omaps == "all" else as_tuples(rules.omaps),
        fmaps=None if rules.fmaps == "all" else as_tuples(rules.fmaps),
        forloop_ranges=None if rules.forloop_ranges == "all" else tuple(rules.forloop_ranges),
        min_blocks=rules.min_blocks,
        max_blocks=rules.max_blocks,
    )


def _check_file(file: _File, where: str) -> None:
    for key, rules in (("free", file.free), ("paper", file.paper)):
        if rules.min_blocks > rules.max_blocks:
            raise SpaceError(
                f"expected at most max_blocks = {rules.max_blocks}, got {rules.min_blocks}",
                where=f"{where}: {key}.min_blocks",
                hint="lower min_blocks or raise max_blocks",
            )


def _space_error(message: str, data: object, where: str) -> SpaceError:
    """Return a SpaceError with key, expected and got for a validation message of the form "... - at `$.key`"."""
    text, _, at = message.partition(" - at ")
    key = at.strip("`").removeprefix("$").removeprefix(".")
    hint = f"the presets have every key and its type: {data_dir('search')}"
    if (unknown := re.search(r"unknown field `(.*)`", text)) is not None:
        full = f"{key}.{unknown[1]}" if key else unknown[1]
        rows = {
            "limits": _Limits.__struct_fields__,
            "free": _Rules.__struct_fields__,
            "paper": _Rules.__struct_fields__,
        }
        known = ", ".join(rows.get(key, _File.__struct_fields__))
        return SpaceError(f"expected one of the keys {known}, got {unknown[1]!r}", where=f"{where}: {full}", hint=hint)
    if (missing := re.search(r"missing required field `(.*)`", text)) is not None:
        full = f"{key}.{missing[1]}" if key else missing[1]
        return SpaceError("expected a value, got nothing", where=f"{where}: {full}", hint=hint)
    if text.startswith("Invalid enum value"):
        leaf = key.rpartition(".")[2]
        if leaf in _Rules.__struct_fields__:
            return SpaceError(
                f'expected "all" or a list, got {_value_at(data, key)!r}', where=f"{where}: {key}", hint=hint
            )
        allowed = ", ".join(Extents)
        return SpaceError(f"expected one of {allowed}, got {_value_at(data, key)!r}", where=f"{where}: {key}")
    expected = text.partition(", got")[0].replace("Expected", "expected", 1).replace("`", "")
    return SpaceError(f"{expected}, got {_value_at(data, key)!r}", where=f"{where}: {key}", hint=hint)


def _value_at(data: object, key: str) -> object:
    for part in re.findall(r"[^.\[\]]+", key):
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and part.isdigit():
            data = data[int(part)]
    return data
