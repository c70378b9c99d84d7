"""Options of a search, each written once: type, range, default, texts and flag; and the check of their values.

Parameters of the command, keyword arguments of Python, messages and documents are derived from the classes here.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import index
from typing import Annotated, Any, Final, Literal, TypedDict

import msgspec
from msgspec import Meta, inspect, structs

from mirage_formal.support.errors import SpaceError


def _expect(what: str) -> Meta:
    """Return the words for a kind of values in messages."""
    return Meta(extra={"expected": what})


#: A name of this length fits every file system.
_LONGEST: Final = 100
_MOST: Final = (1 << 63) - 1
Count = Annotated[int, Meta(ge=1, le=_MOST)]
Natural = Annotated[int, Meta(ge=0, le=_MOST)]
Amount = Annotated[float, Meta(gt=0, le=sys.float_info.max)]
_Text = Annotated[str, Meta(min_length=1, pattern="^[^\0]+$")]
Directory = Annotated[_Text, _expect("a directory")]
TargetName = Annotated[_Text, _expect("a target's name or a .toml file")]
Backend = Annotated[Literal["cuda", "triton", "auto"], _expect("one of cuda, triton, auto")]
AcceptedKernels = Annotated[Literal["proved", "tested"], _expect("one of proved, tested")]
GraphFile = Annotated[_Text, _expect("a JSON file of graphs")]
_SpaceName = Annotated[_Text, _expect("a preset's name or a .toml file")]
_Scheduler = Annotated[_Text, _expect("a scheduler's address")]
_Engine = Annotated[str, Meta(pattern="^(guided|exhaustive)$|:"), _expect("one of guided, exhaustive, module:Class")]
_Dim = Annotated[int, Meta(ge=-1)] | None
Grid = Annotated[tuple[Count, Count, Count], _expect("three integers X,Y,Z from 1 up")]
_Grids = Annotated[Sequence[Grid], Meta(min_length=1), _expect("a list of triples (x, y, z) from 1 up")]
_Maps = Annotated[
    Sequence[tuple[_Dim, _Dim, _Dim]], Meta(min_length=1), _expect("a list of triples (x, y, z) of dims, -1 for none")
]
_Dims = Annotated[Sequence[_Dim], Meta(min_length=1), _expect("a list of dims, -1 for none")]
_Ranges = Annotated[Sequence[Count], Meta(min_length=1), _expect("a list of ranges from 1 up")]
_Watch = Annotated[Callable[[Any], None], _expect("a function")]

#: Advice where a value of an option is of no use.
_DEFAULT_HINT: Final = "leave it out for the default"
ENGINES: Final = ("guided", "exhaustive")
#: How many candidates superoptimize measures: the cost model cannot tell apart what lies within a fifth.
MEASURED: Final = 16


def _python(text: str, default: str = "", **more: object) -> Meta:
    """Return the description of an option of Python.

    Args:
        text: Its meaning.
        default: Shown in place of a default that is None.
        more: See ``_option``.
    """
    return Meta(description=text, extra={"default": default, **more})


def _option(text: str, default: str = "", values: str = "", **more: object) -> Meta:
    """Return the description of an option of Python and of the command line.

    Args:
        text: Its meaning.
        default: Shown in place of a default that is None.
        values: Its values, where the type does not say them.
        more: "cli", "cli_default": its meaning and its default on the command line, if they are said otherwise there.
            "flag": its flag, if that is not its name. "item": the type of one value, if it may be given several times.
    """
    return _python(text, default, **{"values": values, "flag": "{}{}", **more})


class SearchMethod(msgspec.Struct, frozen=True):
    """Options that search engines read.

    ``longer``, which the package sets, says whether kernels may be fused beyond the space's limits for one kernel.
    """

    engine: Annotated[_Engine, _option("Search engine, or one of your own.", "", "guided|exhaustive|MODULE:CLASS")] = (
        "guided"
    )
    oracle: Annotated[Literal["normal-form", "z3"], _option("Decides which abstract expressions are pruned.")] = (
        "normal-form"
    )
    prune: Annotated[
        bool, _option("Whether abstract expressions prune.", cli="Do not prune by abstract expressions.")
    ] = True
    seed: Annotated[Natural, _option("Seed of the fingerprints")] = 0
    longer: bool = False


class Settings(SearchMethod, frozen=True, kw_only=True):
    """Options of one search; every field has a default. Paths are kept as text.

    The package sets four. ``unit_limit``: seconds after which the worker of one unit counts as hung. ``longer``: see
    ``SearchMethod``; set for parts of covers. ``part``: whether the program is a part of a larger one, whose own
    operators stay where nothing is better. ``bucket``: range of extents that the program stands for in the store.
    """

    config: Annotated[
        _SpaceName | None, _option("Search space, or a preset's name.", "by the program", "PRESET|FILE.toml")
    ] = None
    checkpoint: Annotated[
        GraphFile | None,
        _option(
            "Search nothing: the graphs of this file are the candidates, in our format or Mirage's.", "none", "FILE"
        ),
    ] = None
    target: Annotated[TargetName, _option("GPU to rank for.", "", "NAME|FILE.toml")] = "h200"
    workers: Annotated[Count | None, _option("Worker processes", "one for each processor")] = None
    cluster: Annotated[
        _Scheduler | None,
        _option("Dask scheduler whose workers compute, or N workers of dask here.", "none", "tcp://HOST:PORT|local:N"),
    ] = None
    worker_memory: Annotated[Amount | None, _option("Memory that one task may use", "no bound", "GIB")] = None
    max_kernel_ops: Annotated[Count | None, _option("Kernel-level operators, without inputs", "the space's")] = None
    max_block_ops: Annotated[Count | None, _option("Block-level operators, without inputs", "the space's")] = None
    extents: Annotated[
        Literal["free", "paper"] | None,
        _option("Where grids, maps and loop ranges come from: every divisor, or the paper's lists.", "the space's"),
    ] = None
    griddims: Annotated[
        _Grids | None,
        _option("Search these grids only; repeatable.", "the space's", "X,Y,Z", flag="--griddim", item=Grid),
    ] = None
    blockdims: Annotated[_Grids | None, _python("Threads of a block, as triples.", "the space's")] = None
    imaps: Annotated[
        _Maps | None, _python("Grid axis to data dim of inputs, as triples; -1 is replicated.", "the space's")
    ] = None
    omaps: Annotated[
        _Maps | None, _python("Grid axis to data dim of outputs, as triples; -1 is unmapped.", "the space's")
    ] = None
    fmaps: Annotated[_Dims | None, _python("Dims that the loop may split; -1 is none.", "the space's")] = None
    franges: Annotated[_Ranges | None, _python("Ranges of the loop.", "the space's")] = None
    keep: Annotated[Count | None, _option("Candidates to report", "the space's")] = None
    max_states: Annotated[
        Count | None,
        _python("States after which a unit of the search ends with its results so far", "the space's"),
    ] = None
    axioms: Annotated[
        Sequence[_Text] | None,
        _option(
            "Files of axioms of abstract expressions to add (`mirage-formal tools docs axiom`); repeatable",
            *("none", "FILE.smt2"),
            item=_Text,
        ),
    ] = None
    without_axioms: Annotated[
        Sequence[_Text] | None,
        _option(
            "Axioms to switch off, so that less is tried and candidates may be lost; repeatable",
            *("none", "NAME"),
            flag="--without-axiom",
            item=_Text,
        ),
    ] = None
    accept: Annotated[
        Literal["equivalent", "probable"],
        _option(
            "equivalent: report only what is proved; probable: what is not refuted, too.",
            hint="it is about candidates; accept_kernels='tested' also takes kernels that are only tested",
        ),
    ] = "equivalent"
    time_limit: Annotated[
        Amount | None,
        _option(
            "Seconds for the whole call; the search stops after three quarters of them, and its results are verified",
            *("no limit", "SECONDS"),
            cli="For all of a run",
        ),
    ] = None
    proof_limit: Annotated[
        Amount,
        _option("Seconds for the proof of one candidate", "", "SECONDS", cli="For the proof of one candidate"),
    ] = 300.0
    audit: Annotated[
        Natural,
        _option("Pruning decisions that z3 is asked about under the axioms at most; 0 asks about none"),
    ] = 200
    resume: Annotated[bool, _option("Continue the run in the output directory.")] = False
    force: Annotated[bool, _option("Replace the run in the output directory.")] = False
    cache: Annotated[
        bool,
        _option(
            "Whether a finished search of the same program and options is read from the store, and this one is "
            "written to it.",
            cli="Search again what was searched before, and keep nothing.",
        ),
    ] = True
    unit_limit: Amount = 1800.0
    part: bool = False
    bucket: Annotated[_Text | None, _expect("a range of extents")] = None

    @property
    def narrowed(self) -> bool:
        """Return whether the user restricted the search space or the search method."""
        usual = Settings()
        return any(getattr(self, name) != getattr(usual, name) for name in _NARROWING)

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            structs.force_setattr(self, name, _plain(getattr(self, name)))


#: Settings that restrict the search space or the search method.
_NARROWING: Final = (
    *("checkpoint", "config", "engine", "oracle", "prune", "accept", "extents"),
    *("griddims", "blockdims", "imaps", "omaps", "fmaps", "franges", "max_kernel_ops", "max_block_ops"),
)


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of ``superoptimize`` beside those of its search."""

    out: Annotated[
        Directory | None,
        _option(
            "Directory for the evidence. A search there of the same program and options is continued (a finished one "
            "is not searched again); if it is another search, the first digits of this one's key are appended to the "
            "directory's name.",
            *("runs/<name>, with the program's digest for an unnamed one", "DIR"),
            cli="Directory to write.",
            cli_default="runs/<file>",
        ),
    ] = None
    name: Annotated[str, _python("Name of the program: one component of a path.")] = "program"
    measure: Annotated[
        Natural | None,
        _python(
            "Number of candidates that are compared and timed where there is a GPU, within the rest of ``time_limit``, "
            "or a quarter of it; 0 returns all of them, unchecked",
            f"{MEASURED}, and all of them, unchecked, where none can be compared",
        ),
    ] = None
    watch: Annotated[_Watch | None, _python("Callback for progress.", "none")] = None
    backend: Annotated[
        Backend,
        _python(
            'Back end of the results\' calls. "cuda": CUDA kernels. "auto": CUDA kernels, or for the first result its '
            "Triton file, if that was measured to be at least 2 % faster than all CUDA kernels and is within "
            'tolerance. "triton": Triton files, where there is a GPU those that were measured. Triton functions are '
            'tested, not proved safe or to compute their µGraph; so both need accept_kernels="tested". Without it '
            '"auto" is "cuda", which a warning says, and "triton" is an error. Where nothing is measured "auto" is '
            '"cuda", and results with "triton" are in the order of estimates.'
        ),
    ] = "cuda"
    accept_kernels: Annotated[
        AcceptedKernels,
        _python(
            'Kernels that calls may run. "proved": those that are proved to compute their µGraph; a candidate without '
            'such kernels is passed over. "tested": also kernels without that proof; a '
            "warning names each. All are proved safe in either case.",
            hint="it is about kernels; accept='probable' also reports candidates that are not proved equal",
        ),
    ] = "proved"


class Overrides(TypedDict, total=False):
    """A user's own lists and limits for a space; an entry that is missing or None leaves the space's own."""

    extents: str | None
    griddims: Sequence[Sequence[int]] | None
    blockdims: Sequence[Sequence[int]] | None
    imaps: Sequence[Sequence[int]] | None
    omaps: Sequence[Sequence[int]] | None
    fmaps: Sequence[int] | None
    franges: Sequence[int] | None
    max_kernel_ops: int | None
    max_block_ops: int | None
    keep: int | None
    max_states: int | None


@dataclass(frozen=True, slots=True)
class Option:
    """An option as its field describes it.

    Attributes:
        name: Name of the field.
        kind: Type of its values, with their range; of one value, if it may be given several times.
        default: Its default.
        text: Its meaning, and its default, in Python.
        flag: Flag of the command line; empty if it has none.
        help: Its meaning there.
        values: Its values, as shown there; empty for a switch.
        shown: Its default, as shown there.
        repeated: Whether it may be given several times there.
    """

    name: str
    kind: Any
    default: Any
    text: str
    flag: str
    help: str
    values: str
    shown: str
    repeated: bool


def options_of(*kinds: type[msgspec.Struct]) -> Iterator[Option]:
    """Yield the options that users may choose; those of a base class come last."""
    for kind in kinds:
        for field, described in sorted(_typed_fields(kind), key=lambda one: one[0].name not in kind.__annotations__):
            if isinstance(described, inspect.Metadata) and "default" in (described.extra or {}):
                yield _option_of(field, described)


@cache
def _typed_fields(kind: type[msgspec.Struct]) -> tuple[tuple[structs.FieldInfo, inspect.Type], ...]:
    """Return the fields of a class of options, each with its type as msgspec describes it."""
    return tuple((field, inspect.type_info(field.type)) for field in structs.fields(kind))


def _option_of(field: structs.FieldInfo, described: inspect.Metadata) -> Option:
    extra, text, default = described.extra or {}, (described.extra_json_schema or {})["description"], field.default
    _, behind, values = _texts(described)
    shown = "off" if isinstance(default, bool) else f"{default:g}" if isinstance(default, float) else ""
    return Option(
        name=field.name,
        kind=extra.get("item", field.type),
        default=default,
        text=f"{(text + behind).rstrip('.')}. Default: {extra['default'] or default}.",
        flag=extra.get("flag", "").format("--no-" if default is True else "--", field.name.replace("_", "-")),
        help=extra.get("cli", text) + behind,
        values=extra.get("values") or values,
        shown=extra.get("cli_default") or extra["default"] or shown,
        repeated="item" in extra,
    )


def given_options(kind: type[msgspec.Struct], given: Mapping[str, Any]) -> Any:
    """Return the options of a class that a command was given; a switch turns its default over."""
    found = {one.name: (given[one.name], one.default) for one in options_of(kind) if one.flag}
    return kind(**{name: typed ^ usual if isinstance(usual, bool) else typed for name, (typed, usual) in found.items()})


def _texts(info: inspect.Type) -> tuple[str, str, str]:
    """Return the words for a type in messages, those for its range in help, and its values there."""
    words = ""
    while isinstance(info, inspect.Metadata | inspect.UnionType):
        if isinstance(info, inspect.UnionType):
            info = next(one for one in info.types if not isinstance(one, inspect.NoneType))
        else:
            words = words or (info.extra or {}).get("expected", "")
            info = info.type
    match info:
        case inspect.IntType(ge=least):
            return f"a whole number from {least} up", f"; {least} or more.", "N"
        case inspect.FloatType():
            return "a positive finite number", "; above 0.", ""
        case inspect.BoolType():
            return "True or False", "", ""
        case inspect.LiteralType(values=found):
            return words or f"one of {', '.join(map(str, found))}", "", "|".join(map(str, found))
    return words, "", ""


def word_type(choices: Sequence[str]) -> Any:
    """Return the type of some words."""
    literal: Any = Literal
    words: Any = literal[tuple(choices)]
    return Annotated[words, _expect(f"one of {', '.join(choices)}")]


def check_options(given: msgspec.Struct) -> None:
    """Check the type and range of every option.

    Raises:
        SpaceError: A value of another type, or out of range; names the option.
    """
    for field, described in _typed_fields(type(given)):
        own = described.extra if isinstance(described, inspect.Metadata) else None
        check_value(field.name, getattr(given, field.name), field.type, (own or {}).get("hint", _DEFAULT_HINT))


def check_value(where: str, value: object, kind: Any, hint: str = _DEFAULT_HINT) -> Any:
    """Return ``value`` converted to a type of this module.

    Args:
        where: Name of the option.
        value: The value.
        kind: The type, with its range.
        hint: Advice where the value is none of that type.

    Raises:
        SpaceError: The value is none of that type.
    """
    try:
        return msgspec.convert(_plain(value), kind)
    except msgspec.ValidationError as error:
        got, inner = repr(value)[:80], value
        for place in re.findall(r"\[(\d+)\]", str(error)):
            inner = inner[int(place)]  # type: ignore[index]
            got = f"{inner!r:.40} in {repr(value)[:80]}"
        what = f"expected {_texts(inspect.type_info(kind))[0]}, got {got}"
        raise SpaceError(what, where=where, hint=hint) from None


def parse_value(where: str, typed: object, kind: Any) -> Any:
    """Return the value that a user typed, numbers separated by commas as a list; see ``check_value``."""
    try:
        return check_value(where, typed, kind)
    except SpaceError:
        if not isinstance(typed, str):
            raise
    found = [_number(part) for part in typed.split(",")]
    return check_value(where, found if len(found) > 1 else found[0], kind)


def check_name(where: str, value: object) -> str:
    """Return ``value`` if it can name a directory: one component of a path, printable, not too long.

    Raises:
        SpaceError: It is none; names the option ``where``.
    """
    bad = not isinstance(value, str) or not value or value in (".", "..") or len(value) > _LONGEST
    if bad or not isinstance(value, str) or not value.isprintable() or set(value) & set("/\\\0"):
        hint = "a name like a Python name; out= says where the run is written"
        what = f"expected a name of at most {_LONGEST} characters without a path in it, got {repr(value)[:80]}"
        raise SpaceError(what, where=where, hint=hint)
    return value


def _number(typed: str) -> object:
    for kind in (int, float):
        try:
            return kind(typed)
        except ValueError:
            continue
    return typed


def _plain(value: object) -> object:
    """Return a path as text, also in a list, and a number of NumPy as one of Python."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, list | tuple) and any(isinstance(one, os.PathLike) for one in value):
        return [_plain(one) for one in value]
    if value is not None and not isinstance(value, int | float | str | bytes | list | tuple):
        for convert in (index, float):
            try:
                return convert(value)  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError):
                continue
    return value
