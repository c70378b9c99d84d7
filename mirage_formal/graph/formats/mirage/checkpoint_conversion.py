"""Conversion of the first checkpoints of Mirage (May 2024) to the fields that checkpoint_reader.py reads.

Such a file is the state of a search: an object whose ``generated_graphs`` are the graphs. Later versions write
``input_strides``, ``reduction_dimx`` and ``after_accum``, have accumulators, and neither repeat a block graph as
``plan`` nor a sum's dim. What is missing follows from the source of that version (docs/mirage_api.md, "Published
graphs"); what is said twice is compared and left out. Values of another type than expected stay as they are: the reader
refuses them by name.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from mirage_formal.graph.formats.mirage.checkpoint_schema import DeviceRecord
from mirage_formal.graph.formats.mirage.operator_names import BLOCK_ROWS
from mirage_formal.graph.graph_schema import FieldError
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import row_major

#: Field of the graphs in a file of that version.
GRAPHS_FIELD: Final = "generated_graphs"
#: Its reduction_dimx where the file says none: the constant TB_REDUCTION_DIMX there.
_DIMX: Final = 64
#: Fields of a block graph that its plan repeats as they are.
_PLANNED: Final = ("grid_dim", "block_dim", "forloop_range", "reduction_dimx")

_Object = dict[str, Any]


def convert_graph(value: object, path: str) -> object:
    """Return the operators of a graph of a first checkpoint with the fields of later versions.

    The inputs become row-major. The tensor that an output saver has of its own, to which it adds over the loop, becomes
    a tensor behind an accumulator; the reader makes the accumulator.

    Raises:
        FieldError: A plan, or the dim or size of a sum, contradicts the block graph.
    """
    if not isinstance(value, list):
        return value
    return [_convert_kernel(op, f"{path}[{i}]") if isinstance(op, dict) else op for i, op in enumerate(value)]


def _convert_kernel(op: _Object, at: str) -> _Object:
    if op.get("op_type") == "kn_input_op":
        return {"input_strides": _strides(op.get("output_tensors")), **op}
    if op.get("op_type") != "kn_customized_op" or not isinstance(block := op.get("bgraph"), dict):
        return op
    block = {"reduction_dimx": _DIMX, **block}
    operators = block.get("operators")
    if isinstance(operators, list):
        where = f"{at}.bgraph.operators"
        block["operators"] = [
            _convert_block_op(one, block["reduction_dimx"], f"{where}[{i}]") if isinstance(one, dict) else one
            for i, one in enumerate(operators)
        ]
        if "plan" in op:
            _compare_plan(op["plan"], block, f"{at}.plan")
    return {**{name: field for name, field in op.items() if name != "plan"}, "bgraph": block}


def _convert_block_op(op: _Object, dimx: object, at: str) -> _Object:
    name = op.get("op_type")
    found = {field: _with_stage(tensors, after=False) for field, tensors in op.items()}
    if name == "tb_output_op":
        found["output_tensors"] = _with_stage(op.get("output_tensors"), after=True)
    row = BLOCK_ROWS.get(name) if isinstance(name, str) else None
    if row is not None and row.kind in (OpKind.SUM, OpKind.SUM_TO_DIMX):
        for field, wanted in (("reduce_dim", row.dim), ("reduce_size", 1 if row.kind is OpKind.SUM else dimx)):
            if found.pop(field, wanted) != wanted:
                raise FieldError(f"{at}.{field}", f"expected {wanted} as in {name}, got {op[field]!r:.40}")
    return found


def _with_stage(tensors: object, *, after: bool) -> object:
    """Return shared tensors with their stage; a list of anything else, or another value, as it is."""
    if not isinstance(tensors, list):
        return tensors
    return [{"after_accum": after, **one} if isinstance(one, dict) else one for one in tensors]


def _strides(tensors: object) -> list[int]:
    """Return the row-major strides of an input's only tensor; [] if it is invalid, and the reader reports that."""
    try:
        (tensor,) = msgspec.convert(tensors, tuple[DeviceRecord])
    except msgspec.ValidationError:
        return []
    return list(row_major(tensor.dim[: tensor.num_dims]))


def _compare_plan(plan: object, block: _Object, at: str) -> None:
    """Compare a plan with its block graph: the first version reads the plan, and only layouts of the block graph.

    What the block graph lacks is not compared, because the reader says so.

    Raises:
        FieldError: A field of the plan says something else.
    """
    if not isinstance(plan, dict):
        raise FieldError(at, f"expected an object, got {type(plan).__name__}")
    operators = [one for one in block["operators"] if isinstance(one, dict)]
    loads = [one for one in operators if one.get("op_type") == "tb_input_op"]
    wanted: list[tuple[str, object]] = [(name, block[name]) for name in _PLANNED if name in block]
    for name in ("input_map", "forloop_dim"):
        if all(name in one for one in loads):
            wanted.append((name, [one[name] for one in loads]))
    wanted.append(("ops", _expected_plan_ops(operators)))
    wanted += [("output_map", one["output_map"]) for one in operators if "output_map" in one]
    for name, value in wanted:
        if plan.get(name, value) != value:
            what = f"expected what the block graph says, {value!r:.80}, got {plan[name]!r:.80}"
            raise FieldError(f"{at}.{name}", what)


def _expected_plan_ops(operators: list[_Object]) -> list[object]:
    """Return the ``ops`` that a plan must have for the operators of a block graph.

    For each operator between iterators and savers: its type, and for each operand the pair [index of the operator that
    computes it, 0]; the index is -1 where none does.
    """
    places = {guid: index for index, one in enumerate(operators) for guid in _guids(one.get("output_tensors"))}
    inner = (one for one in operators if one.get("op_type") not in ("tb_input_op", "tb_output_op"))
    return [
        [one.get("op_type"), [[places.get(guid, -1), 0] for guid in _guids(one.get("input_tensors"))]] for one in inner
    ]


def _guids(tensors: object) -> list[int]:
    """Return the guids of a list of tensors; those of anything else are none."""
    found = [one.get("guid") for one in tensors if isinstance(one, dict)] if isinstance(tensors, list) else []
    return [guid for guid in found if isinstance(guid, int)]


__all__ = ["GRAPHS_FIELD", "convert_graph"]
