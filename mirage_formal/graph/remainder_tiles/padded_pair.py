"""Program and candidate at the extents to which the candidate pads its inputs: the pair that certificates are about.

A kernel whose tiles overhang sums over more elements than the program has, and abstract expressions contain the number
of summed elements. So the two are compared with the program's inputs at the padded extents as well. Only the pads are
removed for that. They may stand behind views of inputs, behind pads that the program has as well, and behind
elementwise operators of such tensors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from mirage_formal.graph.edit import eliminate_dead_code, renumber, renumber_graph
from mirage_formal.graph.graph import Input, KernelGraph, KernelOp, Op, enumerate_results
from mirage_formal.graph.ops import SPECS, Attrs, OpKind
from mirage_formal.graph.remainder_tiles.padded_extents import (
    decompose_remainder_tiles,
    equal_index_dims,
    reshape_target,
    resize,
    with_shape,
)
from mirage_formal.graph.type_rules import device_results
from mirage_formal.graph.types import DTensor, Shape, row_major
from mirage_formal.graph.verifier import kernel_types

_MOVES = frozenset({OpKind.PAD, OpKind.SLICE, OpKind.TRANSPOSE, OpKind.RESHAPE, OpKind.REPEAT})
_ELEMENTWISE = frozenset(kind for kind, spec in SPECS.items() if spec.elementwise)


def match_extents(program: KernelGraph, candidate: KernelGraph) -> tuple[KernelGraph, KernelGraph]:
    """Return the program and the candidate at the extents to which the candidate pads inputs; unchanged without pads.

    Pads of inputs that both have then are inputs of both, under one name for one pad.
    """
    found = decompose_remainder_tiles(program, candidate)
    longer = _at_padded_extents(program, candidate) if found is None else (found.program, found.candidate)
    both = longer or (program, candidate)
    here, there = (_pads_of_inputs(graph) for graph in both)
    common = sorted(set(here.values()) & set(there.values()), key=repr)
    if not common:
        return both
    named = (_pads_as_inputs(both[0], here, common), _pads_as_inputs(both[1], there, common))
    read = {n for graph in named for op in graph.ops for n in op.operands}.union(*(graph.outputs for graph in named))
    kept = [n for n in range(len(named[0].inputs)) if n in read]
    return _select_inputs(named[0], kept), _select_inputs(named[1], kept)


def certificate_pairs(program: KernelGraph, candidate: KernelGraph) -> tuple[tuple[KernelGraph, KernelGraph], ...]:
    """Return the pairs that certificates may be about: that of ``match_extents``, and one without pads.

    The pads of a concatenation are common, and a kernel may read them at longer extents. A proof log is about the first
    pair in which every tensor is part of an output's expression.

    Sound: see ``_at_padded_extents``; it holds of every program and candidate that are equal where those that were
    given are.
    """
    first = match_extents(program, candidate)
    further = _at_padded_extents(*first)
    return (first,) if further is None else (first, further)


# --- tails ------------------------------------------------------------------------------------------------------------

#: Hash-consed derivation of a tensor: an operator, its attributes, and the operands' derivation numbers; or an input's
#: name.
_How = tuple[OpKind | Attrs | int | str, ...]
#: The dims of inputs, each (input, dim), whose index a tensor's dim has; None where elements are cut or added.
_Dim = frozenset[tuple[int, int]] | None


@dataclass(frozen=True, slots=True)
class _DerivedTensors:
    """Tensors that moves of elements and elementwise operators compute from a graph's inputs.

    Attributes:
        how: The number of each tensor's derivation; a tail, a pad at the end, has that of the padded tensor.
        dims: The dims of inputs that each of its dims has.
        tails: Results of pads behind the end of a dim of inputs.
        shapes: The inputs' shapes with the tails.
    """

    how: dict[int, int]
    dims: dict[int, tuple[_Dim, ...]]
    tails: set[int]
    shapes: list[Shape]


def _derive_tensors(graph: KernelGraph, table: dict[_How, int], own: Collection[int] | None = None) -> _DerivedTensors:
    """Number the tensors that moves and elementwise operators alone derive from the inputs, and find those with tails.

    A tail is a pad at the end. Equal derivations have equal numbers, also in two graphs.

    Args:
        graph: A well-formed graph.
        table: Numbers of derivations, to which new ones are added.
        own: Derivations of tensors that are no tails; None if no tensor is a tail.
    """
    types, shapes = kernel_types(graph), [item.tensor.shape for item in graph.inputs]
    how = {n: table.setdefault((item.name,), len(table)) for n, item in enumerate(graph.inputs)}
    dims: dict[int, tuple[_Dim, ...]] = {
        n: tuple(frozenset({(n, dim)}) for dim in range(len(shape))) for n, shape in enumerate(shapes)
    }
    found = _DerivedTensors(how, dims, set(), shapes)
    for first, op in enumerate_results(len(shapes), graph.ops):
        if not (isinstance(op, Op) and op.kind in _MOVES | _ELEMENTWISE and all(n in how for n in op.operands)):
            continue
        given = op.operands[0]
        key: _How = (op.kind, op.attrs, *(how[n] for n in op.operands))
        how[first] = table.setdefault(key, len(table))
        dims[first] = _dims_of(
            op, [types[n].shape for n in op.operands], types[first].shape, [dims[n] for n in op.operands]
        )
        if op.kind is not OpKind.PAD or op.attrs.dim is None or own is None or op.attrs.before or how[first] in own:
            continue
        behind = dims[given][op.attrs.dim]
        if behind is not None:
            found.tails.add(first)
            how[first], dims[first] = how[given], dims[given]
            for n, dim in behind:
                longer = max(shapes[n][dim], types[first].shape[op.attrs.dim])
                shapes[n] = (*shapes[n][:dim], longer, *shapes[n][dim + 1 :])
    return found


def _dims_of(op: Op, before: Sequence[Shape], after: Shape, dims: Sequence[tuple[_Dim, ...]]) -> tuple[_Dim, ...]:
    """Return for each dim of a result the dims of inputs whose index it has, given those of the operands."""
    (shape, *_), (given, *_) = before, dims
    if op.kind is OpKind.TRANSPOSE and op.attrs.perm is not None:
        return tuple(given[n] for n in op.attrs.perm)
    if op.kind is OpKind.RESHAPE:
        same = {new: old for old, new in equal_index_dims(shape, after)}
        return tuple(given[same[n]] if n in same else None for n in range(len(after)))
    if op.kind in _MOVES:
        return tuple(at if shape[n] == after[n] else None for n, at in enumerate(given))
    found: list[_Dim] = []
    for dim, extent in enumerate(after):
        # Dims are counted from the last one; dims of extent 1, which are broadcast, are left out.
        back = dim - len(after)
        each = [at[back] for have, at in zip(before, dims, strict=True) if -back <= len(have) and have[back] == extent]
        known = [at for at in each if at is not None]
        found.append(frozenset[tuple[int, int]]().union(*known) if len(known) == len(each) else None)
    return tuple(found)


def _at_padded_extents(program: KernelGraph, candidate: KernelGraph) -> tuple[KernelGraph, KernelGraph] | None:
    """Return program and candidate on inputs of the extents to which the candidate pads them or tensors made of them.

    The candidate then has no such pads. None where it has none, where an input is read at two extents, or where the
    program does not fit.

    Sound: no equality rests on it. What a certificate says is about the candidate's kernels, which read operands of the
    same types as before, and about the program's operators at these extents.
    """
    table: dict[_How, int] = {}
    own, types = _derive_tensors(program, table), kernel_types(candidate)
    found = _derive_tensors(candidate, table, set(own.how.values()))
    longer = resize(program, found.shapes) if found.tails else None
    if longer is None:
        return None
    now = [with_shape(*pair) for pair in zip(candidate.inputs, found.shapes, strict=True)]
    inputs, tensors, number, ops = tuple(now), [item.tensor for item in now], list(range(len(now))), list[KernelOp]()
    for first, op in enumerate_results(len(inputs), candidate.ops):
        if first in found.tails:
            number.append(number[op.operands[0]])
            continue
        given = tuple(tensors[number[n]] for n in op.operands)
        results: Sequence[DTensor] | str = types[first : first + op.results]
        if isinstance(op, Op) and first in found.how:
            if op.kind is OpKind.RESHAPE:
                shape = reshape_target(types[op.operands[0]].shape, given[0].shape, types[first].shape)
                op = replace(op, attrs=replace(op.attrs, shape=shape))
            results = device_results(op.kind, op.attrs, given)
        elif given != tuple(types[n] for n in op.operands):
            return None
        if isinstance(results, str):
            return None
        ops.append(renumber(op, number))
        number += range(len(tensors), len(tensors) + op.results)
        tensors += results
    return longer, eliminate_dead_code(KernelGraph(inputs, tuple(ops), tuple(number[n] for n in candidate.outputs)))


# --- pads that both have ----------------------------------------------------------------------------------------------


def _select_inputs(graph: KernelGraph, inputs: Sequence[int]) -> KernelGraph:
    """Return the graph with some of its inputs; it reads no others."""
    count = len(graph.inputs)
    number = {n: i for i, n in enumerate((*inputs, *range(count, len(kernel_types(graph)))))}
    return replace(renumber_graph(graph, number), inputs=tuple(graph.inputs[n] for n in inputs))


#: A tensor made from one input by pads and views: the input's name, and the operators with their attributes.
_Chain = tuple[str | OpKind | Attrs, ...]


def _pads_of_inputs(graph: KernelGraph) -> dict[int, _Chain]:
    """Return the results of pads that are made from one input by pads and views."""
    made: dict[int, _Chain] = {number: (item.name,) for number, item in enumerate(graph.inputs)}
    found: dict[int, _Chain] = {}
    for first, op in enumerate_results(len(graph.inputs), graph.ops):
        if isinstance(op, Op) and op.kind in _MOVES and op.operands[0] in made:
            made[first] = (*made[op.operands[0]], op.kind, op.attrs)
            if op.kind is OpKind.PAD:
                found[first] = made[first]
    return found


def _pads_as_inputs(graph: KernelGraph, pads: Mapping[int, _Chain], common: Sequence[_Chain]) -> KernelGraph:
    """Return the graph with the common pads as additional inputs."""
    types, count, stem = kernel_types(graph), len(graph.inputs), "pad"
    while any(item.name.startswith(stem) for item in graph.inputs):
        stem = f"_{stem}"
    place = {one: count + n for n, one in enumerate(common)}
    shown = {pads[n]: types[n] for n in pads}
    added = tuple(Input(f"{stem}{n}", shown[one], row_major(shown[one].shape)) for n, one in enumerate(common))
    number = [n if n < count else n + len(common) for n in range(len(types))]
    for n, one in pads.items():
        number[n] = place.get(one, number[n])
    return eliminate_dead_code(replace(renumber_graph(graph, number), inputs=(*graph.inputs, *added)))


__all__ = ["certificate_pairs", "match_extents"]
