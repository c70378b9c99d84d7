"""Schema of an operator in Mirage's checkpoint JSON: bounded, typed records, one for each kind of operator.

Fields that are not listed are refused, because they could change the meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from mirage_formal.graph.formats.mirage.operator_names import BLOCK_ROWS, KERNEL_ROWS
from mirage_formal.graph.graph_schema import MAX_OPS, Extent
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import MAX_ELEMENTS, MAX_EXTENT, MAX_RANK

_Code = Annotated[int, Meta(ge=0, le=9999)]
_Guid = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
_Size = Annotated[int, Meta(ge=0, le=MAX_EXTENT)]
_Dims = Annotated[tuple[_Size, ...], Meta(max_length=MAX_RANK)]
_Rank = Annotated[int, Meta(ge=1, le=MAX_RANK)]
_Layout = Annotated[str, Meta(max_length=100)]
_Dim = Annotated[int, Meta(ge=-1, lt=MAX_RANK)]
_Strides = Annotated[tuple[Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)], ...], Meta(max_length=MAX_RANK)]


class Dim3Record(Struct, forbid_unknown_fields=True):
    """Extents of the three grid or block axes."""

    x: Extent
    y: Extent
    z: Extent


class MapRecord(Struct, forbid_unknown_fields=True):
    """Map of the three grid axes: for each the dim that it splits; -1 is none."""

    x: _Dim
    y: _Dim
    z: _Dim


class DeviceRecord(Struct, forbid_unknown_fields=True):
    """A tensor in device memory; ``dim`` is padded with zeros."""

    data_type: _Code
    num_dims: _Rank
    dim: _Dims
    guid: _Guid
    layout: _Layout = ""


class SharedRecord(Struct, forbid_unknown_fields=True):
    """A tensor in shared memory."""

    data_type: _Code
    num_dims: _Rank
    dim: _Dims
    guid: _Guid
    after_accum: bool
    layout: _Layout = ""
    smem_offset: Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)] = 0


_Devices = Annotated[tuple[DeviceRecord, ...], Meta(max_length=MAX_OPS)]
_Shareds = Annotated[tuple[SharedRecord, ...], Meta(max_length=MAX_OPS)]


class KernelRecord(Struct, forbid_unknown_fields=True):
    """A predefined kernel operator."""

    op_type: str
    input_tensors: _Devices
    output_tensors: _Devices


class KernelInput(KernelRecord, forbid_unknown_fields=True, kw_only=True):
    """An input of the program; the map is for several GPUs."""

    input_strides: _Strides
    input_map: MapRecord | None = None


class KernelOutput(KernelRecord, forbid_unknown_fields=True, kw_only=True):
    """An output of the program."""

    output_strides: _Strides | None = None
    output_map: MapRecord | None = None


class KernelNorm(KernelRecord, forbid_unknown_fields=True, kw_only=True):
    """Kernel operator rms_norm; the published writers leave the size out."""

    normalized_size: Extent | None = None


class CheckpointBlockGraph(Struct, forbid_unknown_fields=True):
    """A block graph; its operators are read one by one."""

    grid_dim: Dim3Record
    block_dim: Dim3Record
    forloop_range: Extent
    reduction_dimx: Extent
    operators: Annotated[list[Any], Meta(max_length=MAX_OPS)]
    graph_level: Literal["thread_block_graph"] = "thread_block_graph"
    smem_offset: Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)] = 0


class Customized(KernelRecord, forbid_unknown_fields=True, kw_only=True):
    """A kernel that a block graph defines."""

    bgraph: CheckpointBlockGraph


class BlockRecord(Struct, forbid_unknown_fields=True):
    """A block operator."""

    op_type: str
    input_tensors: _Shareds
    output_tensors: _Shareds


class BlockInput(BlockRecord, forbid_unknown_fields=True, kw_only=True):
    """An input iterator, with a copy of the device tensor that it reads."""

    dtensor: DeviceRecord
    input_map: MapRecord
    forloop_dim: _Dim


class BlockOutput(BlockRecord, forbid_unknown_fields=True, kw_only=True):
    """An output saver, with a copy of the device tensor that it writes."""

    dtensor: DeviceRecord
    output_map: MapRecord
    forloop_dim: Literal[-1] = -1


class BlockConcat(BlockRecord, forbid_unknown_fields=True, kw_only=True):
    """A concatenation, whose name holds the dim as well."""

    concat_dim: _Dim | None = None


AnyKernel = KernelRecord | KernelInput | KernelOutput | KernelNorm | Customized
AnyBlock = BlockRecord | BlockInput | BlockOutput | BlockConcat

KERNEL_RECORDS: Final[Mapping[str, type[AnyKernel]]] = {
    **dict.fromkeys(KERNEL_ROWS, KernelRecord),
    "kn_rms_norm_op": KernelNorm,
    "kn_input_op": KernelInput,
    "kn_output_op": KernelOutput,
    "kn_customized_op": Customized,
}
BLOCK_RECORDS: Final[Mapping[str, type[AnyBlock]]] = {
    **dict.fromkeys(BLOCK_ROWS, BlockRecord),
    **dict.fromkeys((name for name, row in BLOCK_ROWS.items() if row.kind is OpKind.CONCAT), BlockConcat),
    "tb_input_op": BlockInput,
    "tb_output_op": BlockOutput,
}
