"""Check that a graph from another source has a program's inputs and outputs, in the same order."""

from __future__ import annotations

from dataclasses import replace

from mirage_formal.graph.graph import Input, KernelGraph
from mirage_formal.graph.verifier import output_types
from mirage_formal.support.errors import GraphError


def match_inputs(graph: KernelGraph, program: KernelGraph, where: str = "") -> KernelGraph:
    """Return the graph with its inputs renamed to the program's; inputs are paired by position.

    Names that only one of the two has say nothing about the pairing; a name that both have must stand for the same
    input. Element types are not compared, because a verdict is about the reals; but masks, which are zeros and ones,
    must be paired with masks.

    Raises:
        GraphError: Number, shapes or strides of inputs or shapes of outputs differ, one of the two has a mask where the
            other has numbers, or a name of the program stands in another place.
    """
    names = [item.name for item in graph.inputs]
    wanted = [item.name for item in program.inputs]
    moved = [name for name, want in zip(names, wanted, strict=False) if name != want and name in wanted]
    if moved and len(names) == len(wanted):
        what = f"expected inputs in the program's order {', '.join(wanted)}, got {', '.join(names)}"
        hint = f"inputs are paired by place, and {moved[0]} stands in another one: write them in the program's order"
        raise GraphError(what, where=where, hint=hint)
    hint = "the graph must stand for this program: the same inputs and outputs, in the same order"
    for name, want, got in (
        ("inputs", [item.tensor for item in program.inputs], [item.tensor for item in graph.inputs]),
        ("outputs", output_types(program), output_types(graph)),
    ):
        wanted, found = ([tensor.signature for tensor in side] for side in (want, got))
        if wanted != found:
            what = f"expected {name} of shapes [{', '.join(wanted)}], got [{', '.join(found)}]"
            raise GraphError(what, where=where, hint=hint)
    for mine, item in zip(graph.inputs, program.inputs, strict=True):
        if _used_strides(mine) != _used_strides(item):
            what = f"expected input {item.name} with strides {list(item.strides)}, got {list(mine.strides)}"
            hint = f"give the program's {item.name} these strides, or write the graph for the program's"
            raise GraphError(what, where=where, hint=hint)
        if mine.band != item.band:
            what = f"expected input {item.name} with band {item.band}, got {mine.band}"
            raise GraphError(what, where=where, hint=f"declare the program's {item.name} in the same way")
    named = (replace(mine, name=item.name) for mine, item in zip(graph.inputs, program.inputs, strict=True))
    return replace(graph, inputs=tuple(named))


def _used_strides(item: Input) -> list[int]:
    """Return the strides of the dims with extent above 1; others are never used."""
    return [step for step, extent in zip(item.strides, item.tensor.shape, strict=True) if extent > 1]
