"""µGraphs as JSON, for users and files, and as compact bytes, for worker processes.

Loading never executes anything: the text is bounded, parsed as plain JSON, matched against typed records
(graph/graph_schema.py) and turned into frozen values. The published schema is docs/schemas/mugraph.schema.json.
"""

from __future__ import annotations

import json
from typing import Final

import msgspec

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.graph_schema import SCHEMA, VERSION, FieldError, GraphRecord, graph_of, graph_schema, record_of
from mirage_formal.support.errors import FormatError
from mirage_formal.support.strict_json import load_strict_json

#: Largest file that is read; a µGraph of a thousand operators is far below it.
MAX_BYTES: Final = 8 << 20
_WIDTH: Final = 110
_HINT: Final = "the file must be one that mirage-formal wrote: give mugraph.json of a candidate"


def to_json(graph: KernelGraph) -> str:
    """Return readable JSON text of a graph; ``from_json`` gives the same graph back, exactly."""
    return pretty_json(msgspec.to_builtins(record_of(graph))) + "\n"


def embed(graph: KernelGraph) -> msgspec.Raw:
    """Return the text of ``to_json`` as a field of a record."""
    return msgspec.Raw(to_json(graph).strip().encode())


def from_json(text: str | bytes, where: str = "") -> KernelGraph:
    """Return the graph in a JSON text.

    The result refers only to earlier tensors, but its shapes are not checked: see ``check.kernel_types``.

    Args:
        text: The text; at most MAX_BYTES long.
        where: Name of the file, for messages.

    Raises:
        FormatError: The text is no µGraph of a known version; the field at fault is named.
    """
    return from_value(load_json(text, where), where)


def from_value(value: object, where: str = "") -> KernelGraph:
    """Return the graph in plain JSON values.

    Raises:
        FormatError: The values are no µGraph of a known version; the field at fault is named.
    """
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        found = value.get("schema") if isinstance(value, dict) else type(value).__name__
        raise FormatError(f"field $.schema: expected {SCHEMA!r}, got {_shorten(found)}", where=where, hint=_HINT)
    version = value.get("version")
    if version != VERSION or not isinstance(version, int) or isinstance(version, bool):
        hint = "write the graph again with this version of mirage_formal"
        raise FormatError(f"field $.version: expected {VERSION}, got {_shorten(version)}", where=where, hint=hint)
    try:
        return graph_of(msgspec.convert(value, GraphRecord))
    except msgspec.ValidationError as error:
        raise FormatError(field_message(error), where=where, hint=_HINT) from error
    except FieldError as error:
        raise FormatError(f"field {error.path}: {error.what}", where=where, hint=_HINT) from error


def encode(graph: KernelGraph) -> bytes:
    """Return compact bytes of a graph, for worker processes."""
    return msgspec.msgpack.encode(record_of(graph))


def decode_graph(data: bytes) -> KernelGraph:
    """Return the graph in bytes that ``encode`` made.

    Raises:
        FormatError: The bytes are no µGraph.
    """
    try:
        return graph_of(msgspec.msgpack.decode(data, type=GraphRecord))
    except (msgspec.DecodeError, FieldError, RecursionError) as error:
        raise FormatError(f"encoded graph: {error}", hint="the bytes must come from serialize.encode") from error


def graph_schema_text() -> str:
    """Return the text of docs/schemas/mugraph.schema.json."""
    return json.dumps(graph_schema(), indent=2, sort_keys=True) + "\n"


def load_json(text: str | bytes, where: str = "") -> object:
    """Return the plain JSON values in a bounded text, without duplicate keys.

    Raises:
        FormatError: See ``strict_json.load``.
    """
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return load_strict_json(data, where, limit=MAX_BYTES, hint=_HINT)


def field_message(error: msgspec.ValidationError) -> str:
    """Return a message of msgspec with the field first: ``field $.ops[0].operands: expected ..., got ...``."""
    what, separator, path = str(error).rpartition(" - at `")
    if not separator:
        return f"field $: {str(error)[:1].lower()}{str(error)[1:]}"
    return f"field {path.rstrip('`')}: {what[:1].lower()}{what[1:]}"


def pretty_json(value: object, indent: int = 0) -> str:
    """Return JSON text in which a value that fits on one line stays on one line."""
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if len(flat) + indent <= _WIDTH or not isinstance(value, dict | list | tuple) or not value:
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        items = [
            f"{json.dumps(key, ensure_ascii=False)}: {pretty_json(item, indent + 1)}" for key, item in value.items()
        ]
        return "{\n" + ",\n".join(pad + item for item in items) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + pretty_json(item, indent + 1) for item in value) + "\n" + " " * indent + "]"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
