"""Check that the engines of guided search take a program, with one output or several."""

from __future__ import annotations

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.search.guided.axes import require_normal_form
from mirage_formal.search.horizontal_fusion.slices import backward_slices
from mirage_formal.search.horizontal_fusion.whole_program_fusion import is_fusible
from mirage_formal.support.errors import UnsupportedError


def require_outputs(program: KernelGraph) -> None:
    """Raise an error unless each output has a slice that the guided engine takes or whole-program fusion can compute.

    Args:
        program: A program of predefined operators.

    Raises:
        UnsupportedError: An output has no such slice.
    """
    if len(program.outputs) == 1:
        require_normal_form(program)
        return
    for ways in backward_slices(program):
        refused: list[UnsupportedError] = []
        for one in ways:
            try:
                require_normal_form(one.program)
            except UnsupportedError as error:
                if not is_fusible(one.program):
                    refused.append(error)
        if len(refused) == len(ways):
            raise refused[0]


__all__ = ["require_outputs"]
