"""The JSON Schema of a run's files, made from the records."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from mirage_formal.journal.records import (
    CertificateRecord,
    ClosingRecord,
    EquivalenceRecord,
    ManifestRecord,
    RunRecord,
    SummaryRecord,
    UnitRecord,
    VerificationRecord,
)

#: Files (and lines, for the two logs) of a run's directory, and the records that they hold.
FILES: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "run.json": (RunRecord,),
    "search.jsonl": (UnitRecord,),
    "summary.json": (SummaryRecord,),
    "proof.jsonl": (CertificateRecord, EquivalenceRecord, ClosingRecord),
    "verification.json": (VerificationRecord,),
    "manifest.json": (ManifestRecord,),
}


def schema() -> dict[str, Any]:
    """The schema; ``#/$defs/<file>`` is that of a file, or of a line of a .jsonl file."""
    kinds = [kind for kinds in FILES.values() for kind in kinds]
    _, found = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for definition in found.values():
        definition["description"] = definition.get("description", "").split("\n")[0]
    for name, kinds_ in FILES.items():
        found[name] = {"anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds_]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Files of a run directory (docs/run-directory.md); proof.jsonl and search.jsonl line by line",
        "$defs": found,
    }


def schema_text() -> str:
    """Text of docs/schemas/run-directory.schema.json."""
    return json.dumps(schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
