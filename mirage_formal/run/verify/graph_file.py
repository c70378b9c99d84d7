"""Graphs of a file: one of ours, a list of these, or a checkpoint of Mirage."""

from __future__ import annotations

from pathlib import Path

from mirage_formal.graph.formats.json import MAX_BYTES, from_value, load_json
from mirage_formal.graph.formats.mirage.checkpoint_reader import graphs_of, is_mirage
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.types import DType
from mirage_formal.support.errors import FormatError, MirageError


def read_graph_file(path: Path, where: str) -> bytes:
    """Return the bytes of a file of graphs, one more than such a file may have if it is longer.

    Raises:
        FormatError: There is no such file.
    """
    if not path.is_file():
        got = "a directory" if path.is_dir() else "nothing there"
        raise FormatError(f"expected a JSON file, got {got}", where=where, hint="check the path")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def load_graphs(data: bytes, where: str, program: KernelGraph) -> list[KernelGraph | MirageError]:
    """Return the graphs of a file: one of ours, a list of these, or a checkpoint of Mirage.

    In a list, a graph that cannot be read is returned as its error. If a checkpoint does not tell its 16-bit element
    type, the program's is used.

    Args:
        data: Bytes of the file.
        where: Its name, for messages.
        program: The program that the graphs stand for.

    Raises:
        FormatError: It is neither.
    """
    value = load_json(data, where)
    if is_mirage(value):
        bfloat16 = any(item.tensor.dtype is DType.BFLOAT16 for item in program.inputs)
        half = DType.BFLOAT16 if bfloat16 else DType.FLOAT16
        return list(graphs_of(value, where, half=half, names=[item.name for item in program.inputs]))
    if not isinstance(value, list):
        return [from_value(value, where)]
    return [_read_own_format(item, f"{where}, graph {index}") for index, item in enumerate(value)]


def _read_own_format(value: object, where: str) -> KernelGraph | MirageError:
    try:
        return from_value(value, where)
    except MirageError as error:
        return error
