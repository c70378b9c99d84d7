"""Serialization of Programs as the records of programs.json: exact, with one text only for each list of Programs.

Reading is iterative and bounded. References name earlier entries, and the depth and size of the tables are counted
before any object is built from them. Another text for the same Programs (other order, an unused entry, a duplicate key,
white space) is refused, because writing the Programs that were read must reproduce the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from mirage_formal.codegen.program import program as ir
from mirage_formal.graph.types import DType
from mirage_formal.records import Record, decode, json_line
from mirage_formal.records import programs as records
from mirage_formal.records.programs import PROGRAMS_FILE, ProgramEntry, ProgramsRecord
from mirage_formal.support.errors import FormatError

#: Largest text that is read, in bytes.
MAX_BYTES: Final = 8 << 20
#: Deepest nesting of bodies, values and expressions together; Programs of the examples have 22.
MAX_DEPTH: Final = 128
#: Most statements, values and expressions of all Programs of a file together; a shared one counts at every use.
MAX_SIZE: Final = 1 << 18

#: Classes of a Program by table, and the records that they are written as.
TABLES: Final[Mapping[str, Mapping[type, type[Record]]]] = {
    table: {kind: getattr(records, f"{kind.__name__}Entry") for kind in kinds}
    for table, kinds in (
        ("integers", (ir.Int, ir.Var, ir.IntBin)),
        ("values", (ir.Real, ir.Reg, ir.SharedRead, ir.GlobalRead, ir.Apply, ir.Combine, ir.Select, ir.Where)),
        ("statements", ir.Stmt.__args__),
    )
}
#: The table that a field refers to, by the field's annotation.
_REFERS: Final = {
    "IntExpr": "integers",
    "Value": "values",
    "tuple[Value, ...]": "values",
    "tuple[Stmt, ...]": "statements",
}
_KINDS: Final = {entry: kind for kinds in TABLES.values() for kind, entry in kinds.items()}


def encode_programs(programs: Sequence[ir.Program]) -> bytes:
    """Return the text of programs.json.

    Raises:
        FormatError: A Program is beyond the bounds of the reader, or the text does not give the same Programs when it
            is read back.
    """
    text = _encode(programs)
    if decode_programs(text) != tuple(programs):
        raise FormatError(
            "expected the written text to give the same Programs when read back, got others; "
            "this is a bug of mirage_formal",
            where=PROGRAMS_FILE,
            hint="report it with the program",
        )
    return text


def decode_programs(text: bytes, where: str = PROGRAMS_FILE) -> tuple[ir.Program, ...]:
    """Return the Programs in a text of programs.json.

    This does not check that a Program is meaningful: see codegen.safety.safety.



    Raises:
        FormatError: The text is malformed, beyond the bounds, or not the one that these Programs are written as.
    """
    if len(text) > MAX_BYTES:
        raise FormatError(f"expected at most {MAX_BYTES} bytes, got {len(text)}", where=where)
    record = decode(text, ProgramsRecord, where)
    left, found = MAX_SIZE, list[ir.Program]()
    for number, entry in enumerate(record.programs):
        program, size = _read(entry, f"{where}: $.programs[{number}]", left)
        left -= size
        found.append(program)
    if _encode(found) != text:
        what = "expected the one text that these Programs are written as, got another that says the same"
        raise FormatError(what, where=where, hint="no key twice, no entry twice or unused, no white space")
    return tuple(found)


# --- writing ---------------------------------------------------------------------------------------------------------


def _encode(programs: Sequence[ir.Program]) -> bytes:
    return json_line(ProgramsRecord(programs=tuple(map(_entry, programs))))


def _entry(program: ir.Program) -> ProgramEntry:
    tables = _Tables()
    body = tables.refs("statements", program.body)
    producer = tables.refs("statements", program.producer)
    integers, values, statements = (tuple(tables.entries[name]) for name in ("integers", "values", "statements"))
    return ProgramEntry(
        name=program.name,
        params=tuple(
            records.ParamEntry(p.name, p.dtype.value, p.elements, p.written, p.align, p.given) for p in program.params
        ),
        shared=tuple(records.SharedBufferEntry(b.name, b.dtype.value, b.elements, b.offset) for b in program.shared),
        grid=program.grid,
        threads=program.threads,
        integers=integers,
        values=values,
        statements=statements,
        body=body,
        alone=program.alone,
        producer=producer,
        pipelines=tuple(records.PipelineEntry(p.name, p.slots, p.bytes) for p in program.pipelines),
    )


class _Tables:
    """Tables of entries, each entry once, in the order in which they are complete."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[Any, int]] = {name: {} for name in TABLES}

    def refs(self, table: str, items: Sequence[object]) -> tuple[int, ...]:
        return tuple(self.ref(table, item) for item in items)

    def ref(self, table: str, item: object) -> int:
        given = {field.name: self._field(str(field.type), getattr(item, field.name)) for field in fields(item)}  # type: ignore[arg-type]
        # Records are compared, not the values that they describe: Real(0.0) == Real(-0.0).
        entry = TABLES[table][type(item)](**given)
        known = self.entries[table]
        return known.setdefault(entry, len(known))

    def _field(self, annotation: str, value: Any) -> object:
        if annotation in _REFERS:
            table = _REFERS[annotation]
            return self.refs(table, value) if annotation.startswith("tuple") else self.ref(table, value)
        if annotation.startswith("float"):
            return None if value is None else float.hex(value)
        return getattr(value, "value", value)  # of enumerations


# --- reading ---------------------------------------------------------------------------------------------------------

_ENUMS: Final[Mapping[str, Callable[[Any], object]]] = {
    "IntOp": ir.IntOp,
    "UnaryFn": ir.UNARY_FUNCTIONS.__getitem__,
    "BinaryFn": ir.BinaryFn,
    "DType": DType,
    "float": float.fromhex,
    "float | None": lambda text: None if text is None else float.fromhex(text),
}


def _read(entry: ProgramEntry, where: str, most: int) -> tuple[ir.Program, int]:
    """Return a Program and its size, which is at most ``most``."""
    made: dict[str, list[Any]] = {name: [] for name in TABLES}
    depth: dict[str, list[int]] = {name: [] for name in TABLES}
    size: dict[str, list[int]] = {name: [] for name in TABLES}
    for table in TABLES:  # values refer to integers, statements to both
        for number, item in enumerate(getattr(entry, table)):
            place = f"{where}.{table}[{number}]"
            used = list(_references(item))
            for other, ref in used:
                if ref >= len(made[other]):
                    raise FormatError(f"expected an earlier entry of {other}, got {ref}", where=place)
            depth[table].append(1 + max((depth[other][ref] for other, ref in used), default=0))
            size[table].append(1 + sum(size[other][ref] for other, ref in used))
            _check_bounds(depth[table][-1], size[table][-1], most, place)
            made[table].append(_build_entry(item, made, place))
    for part, refs in (("body", entry.body), ("producer", entry.producer)):
        for ref in refs:
            if ref >= len(made["statements"]):
                raise FormatError(f"expected an entry of statements, got {ref}", where=f"{where}.{part}")
    whole = 1 + sum(size["statements"][ref] for ref in (*entry.body, *entry.producer))
    _check_bounds(0, whole, most, f"{where}.body")
    program = ir.Program(
        entry.name,
        tuple(ir.Param(p.name, DType(p.dtype), p.elements, p.written, p.align, p.given) for p in entry.params),
        tuple(ir.SharedBuffer(b.name, DType(b.dtype), b.elements, b.offset) for b in entry.shared),
        entry.grid,
        entry.threads,
        tuple(made["statements"][ref] for ref in entry.body),
        entry.alone,
        tuple(made["statements"][ref] for ref in entry.producer),
        tuple(ir.Pipeline(p.name, p.slots, p.bytes) for p in entry.pipelines),
    )
    return program, whole


def _references(item: Record) -> Iterator[tuple[str, int]]:
    """Yield the entries that an entry refers to: table and position."""
    for field in fields(_KINDS[type(item)]):
        table = _REFERS.get(str(field.type))
        if table is not None:
            value = getattr(item, field.name)
            yield from ((table, ref) for ref in (value if isinstance(value, tuple) else (value,)))


def _check_bounds(depth: int, size: int, most: int, where: str) -> None:
    if depth > MAX_DEPTH or size > most:
        what = f"expected at most {MAX_SIZE} nodes in all, of depth {MAX_DEPTH}, got more"
        raise FormatError(what, where=where)


def _build_entry(item: Record, made: Mapping[str, list[Any]], where: str) -> object:
    kind = _KINDS[type(item)]
    given: dict[str, object] = {}
    for field in fields(kind):
        annotation, value = str(field.type), getattr(item, field.name)
        if annotation in _REFERS:
            table = made[_REFERS[annotation]]
            given[field.name] = tuple(table[ref] for ref in value) if isinstance(value, tuple) else table[value]
        elif annotation == "UnaryFn" and value not in ir.UNARY_FUNCTIONS:
            names = ", ".join(ir.UNARY_FUNCTIONS)
            raise FormatError(f"expected a function of one number, one of {names}, got {value}", where=where)
        else:
            given[field.name] = _ENUMS.get(annotation, _identity)(value)
    return kind(**given)


def _identity(value: object) -> object:
    return value
