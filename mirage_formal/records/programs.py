"""The records of programs.json: Programs as tables, one Struct per class of codegen/program/program.py, with its names.

Expressions, values and statements stand in three tables of each kernel, each only once, in the order in which they are
first needed; a reference is a position in the table of its kind, and names an earlier entry. So nothing nests, however
deep a Program is. codegen/program/serialization.py turns the records into Programs and back.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from mirage_formal.records.run import Record, VersionedRecord

PROGRAMS_FILE: Final = "programs.json"
#: Most entries of a table, of a body and of a list of values.
MAX_ENTRIES: Final = 1 << 16

_INT_MAX: Final = 2**31 - 1

#: A position in a table.
Ref = Annotated[int, msgspec.Meta(ge=0, lt=MAX_ENTRIES)]
Refs = Annotated[tuple[Ref, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
Name = Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(?!\n)$")]
Whole = Annotated[int, msgspec.Meta(ge=-_INT_MAX - 1, le=_INT_MAX)]
Natural = Annotated[int, msgspec.Meta(ge=0, le=_INT_MAX)]
Size = Annotated[int, msgspec.Meta(ge=1, le=_INT_MAX)]
#: A float as float.hex writes it: exact, and able to say "inf" and "-0x0.0p+0".
Float = Annotated[str, msgspec.Meta(max_length=32, pattern=r"^-?(inf|0x[01]\.[0-9a-f]+p[+-][0-9]+)(?!\n)$")]
Element = Literal["float16", "bfloat16", "float32", "bool"]
#: A function of one number, in ``codegen.program.program.UNARY_FUNCTIONS``.
Unary = Name
Binary = Literal["add", "sub", "mul", "div", "max", "min", "div_no_nan", "eq", "lt", "le", "gt", "ge"]
Integer = Literal["+", "-", "*", "/", "%", "^", "<", "==", "&&"]

# --- integer expressions ---------------------------------------------------------------------------------------------


class IntEntry(Record, frozen=True, tag_field="is", tag="int"):
    """Serialized ``Int`` of codegen/program/program.py."""

    value: Whole


class VarEntry(Record, frozen=True, tag_field="is", tag="var"):
    """Serialized ``Var`` of codegen/program/program.py."""

    name: Name


class IntBinEntry(Record, frozen=True, tag_field="is", tag="bin"):
    """Serialized ``IntBin`` of codegen/program/program.py; ``a`` and ``b`` are positions in the table ``integers``."""

    op: Integer
    a: Ref
    b: Ref


IntExprEntry = IntEntry | VarEntry | IntBinEntry

# --- values ----------------------------------------------------------------------------------------------------------


class RealEntry(Record, frozen=True, tag_field="is", tag="real"):
    """Serialized ``Real`` of codegen/program/program.py."""

    value: Float


class RegEntry(Record, frozen=True, tag_field="is", tag="reg"):
    """Serialized ``Reg`` of codegen/program/program.py."""

    array: Name
    index: Ref


class SharedReadEntry(Record, frozen=True, tag_field="is", tag="shared_read"):
    """Serialized ``SharedRead`` of codegen/program/program.py."""

    buffer: Name
    index: Ref


class GlobalReadEntry(Record, frozen=True, tag_field="is", tag="global_read"):
    """Serialized ``GlobalRead`` of codegen/program/program.py."""

    param: Name
    index: Ref


class ApplyEntry(Record, frozen=True, tag_field="is", tag="apply"):
    """Serialized ``Apply`` of codegen/program/program.py; ``a`` is a position in the table ``values``."""

    fn: Unary
    a: Ref


class CombineEntry(Record, frozen=True, tag_field="is", tag="combine"):
    """Serialized ``Combine`` of codegen/program/program.py; ``a`` and ``b`` are positions in the table ``values``."""

    fn: Binary
    a: Ref
    b: Ref


class SelectEntry(Record, frozen=True, tag_field="is", tag="select"):
    """Serialized ``Select`` of codegen/program/program.py.

    ``condition`` is a position in the table ``integers``, ``a`` and ``b`` are positions in the table ``values``.
    """

    condition: Ref
    a: Ref
    b: Ref


class WhereEntry(Record, frozen=True, tag_field="is", tag="where"):
    """Serialized ``Where`` of codegen/program/program.py; all fields are positions in the table ``values``."""

    mask: Ref
    a: Ref
    b: Ref


ValueEntry = (
    RealEntry | RegEntry | SharedReadEntry | GlobalReadEntry | ApplyEntry | CombineEntry | SelectEntry | WhereEntry
)

# --- statements ------------------------------------------------------------------------------------------------------


class RegistersEntry(Record, frozen=True, tag_field="is", tag="registers"):
    """Serialized ``Registers`` of codegen/program/program.py."""

    name: Name
    count: Size
    words: bool
    initial: Float | None


class ForEntry(Record, frozen=True, tag_field="is", tag="for"):
    """Serialized ``For`` of codegen/program/program.py; ``body`` has positions in the table ``statements``."""

    var: Name
    extent: Size
    body: Refs
    unroll: bool


class IfEntry(Record, frozen=True, tag_field="is", tag="if"):
    """Serialized ``If`` of codegen/program/program.py.

    ``condition`` is a position in the table ``integers``, ``body`` has positions in the table ``statements``.
    """

    condition: Ref
    body: Refs
    uniform: bool


class SetRegEntry(Record, frozen=True, tag_field="is", tag="set_reg"):
    """Serialized ``SetReg`` of codegen/program/program.py."""

    array: Name
    index: Ref
    value: Ref


class PackEntry(Record, frozen=True, tag_field="is", tag="pack"):
    """Serialized ``Pack`` of codegen/program/program.py."""

    words: Name
    index: Ref
    low: Ref
    high: Ref
    dtype: Element


class SharedWriteEntry(Record, frozen=True, tag_field="is", tag="shared_write"):
    """Serialized ``SharedWrite`` of codegen/program/program.py."""

    buffer: Name
    index: Ref
    values: Refs


class GlobalWriteEntry(Record, frozen=True, tag_field="is", tag="global_write"):
    """Serialized ``GlobalWrite`` of codegen/program/program.py."""

    param: Name
    index: Ref
    values: Refs


class SharedVectorEntry(Record, frozen=True, tag_field="is", tag="shared_vector"):
    """Serialized ``SharedVector`` of codegen/program/program.py."""

    array: Name
    at: Ref
    buffer: Name
    index: Ref
    count: Size


class GlobalVectorEntry(Record, frozen=True, tag_field="is", tag="global_vector"):
    """Serialized ``GlobalVector`` of codegen/program/program.py."""

    array: Name
    at: Ref
    param: Name
    index: Ref
    count: Size


class CopyAsyncEntry(Record, frozen=True, tag_field="is", tag="copy_async", omit_defaults=True):
    """Serialized ``CopyAsync`` of codegen/program/program.py; ``bytes`` is left out where it is 16."""

    buffer: Name
    index: Ref
    param: Name
    source: Ref
    valid: Ref
    bytes: Literal[4, 8, 16] = 16


class CommitEntry(Record, frozen=True, tag_field="is", tag="commit"):
    """Serialized ``Commit`` of codegen/program/program.py."""


class WaitGroupsEntry(Record, frozen=True, tag_field="is", tag="wait_groups"):
    """Serialized ``WaitGroups`` of codegen/program/program.py."""

    left: Natural


class BarrierEntry(Record, frozen=True, omit_defaults=True, tag_field="is", tag="barrier"):
    """Serialized ``Barrier`` of codegen/program/program.py."""

    fenced: bool = False


class LoadMatrixEntry(Record, frozen=True, tag_field="is", tag="load_matrix"):
    """Serialized ``LoadMatrix`` of codegen/program/program.py."""

    words: Name
    at: Ref
    buffer: Name
    index: Ref
    count: Size
    transposed: bool


class MmaEntry(Record, frozen=True, tag_field="is", tag="mma"):
    """Serialized ``Mma`` of codegen/program/program.py."""

    d: Name
    d_at: Ref
    a: Name
    a_at: Ref
    b: Name
    b_at: Ref
    dtype: Element


class WarpgroupMmaEntry(Record, frozen=True, tag_field="is", tag="warpgroup_mma"):
    """Serialized ``WarpgroupMma`` of codegen/program/program.py; ``*_at`` are positions in the table ``integers``."""

    d: Name
    d_at: Ref
    a: Name
    a_at: Ref
    b: Name
    b_at: Ref
    columns: Size
    depth: Size
    dtype: Element
    a_panel: Natural
    a_across: bool
    b_panel: Natural
    b_across: bool
    accumulate: bool
    deferred: bool


class WarpgroupWaitEntry(Record, frozen=True, tag_field="is", tag="warpgroup_wait"):
    """Serialized ``WarpgroupWait`` of codegen/program/program.py; ``d_at`` is a position in the table ``integers``."""

    d: Name
    d_at: Ref
    columns: Size


class ShuffleReduceEntry(Record, frozen=True, tag_field="is", tag="shuffle_reduce"):
    """Serialized ``ShuffleReduce`` of codegen/program/program.py."""

    array: Name
    at: Ref
    fn: Binary
    mask: Natural


class GridWaitEntry(Record, frozen=True, tag_field="is", tag="grid_wait"):
    """Serialized ``GridWait`` of codegen/program/program.py."""


class LaunchDependentsEntry(Record, frozen=True, tag_field="is", tag="launch_dependents"):
    """Serialized ``LaunchDependents`` of codegen/program/program.py."""


class AcquireEntry(Record, frozen=True, tag_field="is", tag="acquire"):
    """Serialized ``Acquire`` of codegen/program/program.py; ``item`` is a position in the table ``integers``."""

    pipeline: Name
    item: Ref


class TileCopyEntry(Record, frozen=True, tag_field="is", tag="tile_copy"):
    """Serialized ``TileCopy`` of codegen/program/program.py.

    ``item``, ``at`` and ``source`` are positions in the table ``integers``.
    """

    pipeline: Name
    item: Ref
    buffer: Name
    at: Ref
    param: Name
    source: Ref
    rows: Size
    stride: Size


class AwaitEntry(Record, frozen=True, tag_field="is", tag="await"):
    """Serialized ``Await`` of codegen/program/program.py; ``item`` is a position in the table ``integers``."""

    pipeline: Name
    item: Ref


class ReleaseEntry(Record, frozen=True, tag_field="is", tag="release"):
    """Serialized ``Release`` of codegen/program/program.py; ``item`` is a position in the table ``integers``."""

    pipeline: Name
    item: Ref


StmtEntry = (
    RegistersEntry
    | ForEntry
    | IfEntry
    | SetRegEntry
    | PackEntry
    | SharedWriteEntry
    | GlobalWriteEntry
    | SharedVectorEntry
    | GlobalVectorEntry
    | CopyAsyncEntry
    | CommitEntry
    | WaitGroupsEntry
    | BarrierEntry
    | LoadMatrixEntry
    | MmaEntry
    | WarpgroupMmaEntry
    | WarpgroupWaitEntry
    | ShuffleReduceEntry
    | GridWaitEntry
    | LaunchDependentsEntry
    | AcquireEntry
    | TileCopyEntry
    | AwaitEntry
    | ReleaseEntry
)

# --- kernels ---------------------------------------------------------------------------------------------------------


class ParamEntry(Record, frozen=True):
    """Serialized ``Param`` of codegen/program/program.py."""

    name: Name
    dtype: Element
    elements: Size
    written: bool
    align: Size
    given: bool = False


class SharedBufferEntry(Record, frozen=True):
    """Serialized ``SharedBuffer`` of codegen/program/program.py."""

    name: Name
    dtype: Element
    elements: Size
    offset: Natural


class PipelineEntry(Record, frozen=True):
    """Serialized ``Pipeline`` of codegen/program/program.py."""

    name: Name
    slots: Size
    bytes: Size


class ProgramEntry(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One Program.

    Attributes:
        name, params, shared, grid, threads, alone: As in codegen/program/program.py; ``alone`` is left out if it is
            false, as it was before there was one.
        integers, values, statements: Its expressions, values and statements.
        body: Positions in ``statements``.
        producer: The same of its producer; left out, as ``pipelines`` are, if it has none.
        pipelines: Its pipelines.
    """

    name: Name
    params: Annotated[tuple[ParamEntry, ...], msgspec.Meta(max_length=1024)]
    shared: Annotated[tuple[SharedBufferEntry, ...], msgspec.Meta(max_length=1024)]
    grid: tuple[Size, Size, Size]
    threads: Size
    integers: Annotated[tuple[IntExprEntry, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
    values: Annotated[tuple[ValueEntry, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
    statements: Annotated[tuple[StmtEntry, ...], msgspec.Meta(max_length=MAX_ENTRIES)]
    body: Refs
    alone: bool = False
    producer: Refs = ()
    pipelines: Annotated[tuple[PipelineEntry, ...], msgspec.Meta(max_length=1024)] = ()


class ProgramsRecord(VersionedRecord, frozen=True, kw_only=True):
    """programs.json: the Programs of all generated kernels, in the order of their launches."""

    programs: Annotated[tuple[ProgramEntry, ...], msgspec.Meta(max_length=1024)]
