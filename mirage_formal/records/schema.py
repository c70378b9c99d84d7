"""The JSON Schema of a run's files, made from the records."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from mirage_formal.records.forms import FormRecord
from mirage_formal.records.journal import UnitRecord
from mirage_formal.records.kernels import (
    KERNELS,
    LAUNCH_FILE,
    OBLIGATIONS_FILE,
    PLAN_FILE,
    REALIZES_FILE,
    STABILIZED_PROOF_FILE,
    KernelManifestRecord,
    LaunchRecord,
    ObligationRecord,
    PlanRecord,
    RealizesRecord,
)
from mirage_formal.records.measurement import MEASURE_FILE, NUMERICS_FILE, MeasureRecord, NumericsRecord
from mirage_formal.records.partition import (
    COVERS,
    WHOLE_FILE,
    CompositionRecord,
    CoverVerificationRecord,
    PartProofRecord,
    WholeRecord,
)
from mirage_formal.records.programs import PROGRAMS_FILE, ProgramsRecord
from mirage_formal.records.run import (
    EXHAUSTED_FILE,
    MANIFEST_FILE,
    PROOF_FILE,
    VERIFICATION_FILE,
    CertificateRecord,
    ClosingRecord,
    EquivalenceRecord,
    ExhaustedRecord,
    ManifestRecord,
    RunRecord,
    SummaryRecord,
    VerificationRecord,
)
from mirage_formal.records.store_entry import ENTRY_FILE, SearchEntry

#: Files (and lines, for the logs) of a run's directory, and the records that they hold; those with ``kernels-`` or
#: ``covers-`` before their names lie in directories of kernels or of covers.
FILES: Final[dict[str, tuple[type[msgspec.Struct], ...]]] = {
    "run.json": (RunRecord,),
    "search.jsonl": (UnitRecord,),
    "summary.json": (SummaryRecord,),
    EXHAUSTED_FILE: (ExhaustedRecord,),
    "proof.jsonl": (CertificateRecord, EquivalenceRecord, ClosingRecord),
    "verification.json": (VerificationRecord,),
    "manifest.json": (ManifestRecord,),
    WHOLE_FILE: (WholeRecord,),
    f"{COVERS}-{PROOF_FILE}": (PartProofRecord, CompositionRecord),
    f"{COVERS}-{VERIFICATION_FILE}": (CoverVerificationRecord,),
    ENTRY_FILE: (SearchEntry,),
    f"{KERNELS}-{MANIFEST_FILE}": (KernelManifestRecord,),
    f"{KERNELS}-{STABILIZED_PROOF_FILE}": (FormRecord,),
    f"{KERNELS}-{LAUNCH_FILE}": (LaunchRecord,),
    f"{KERNELS}-{PLAN_FILE}": (PlanRecord,),
    f"{KERNELS}-{PROGRAMS_FILE}": (ProgramsRecord,),
    f"{KERNELS}-{OBLIGATIONS_FILE}": (ObligationRecord,),
    f"{KERNELS}-{REALIZES_FILE}": (RealizesRecord,),
    f"{KERNELS}-{NUMERICS_FILE}": (NumericsRecord,),
    f"{KERNELS}-{MEASURE_FILE}": (MeasureRecord,),
}


def run_directory_schema() -> dict[str, Any]:
    """The schema; ``#/$defs/<file>`` is that of a file, or of a line of a .jsonl file."""
    kinds = [kind for kinds in FILES.values() for kind in kinds]
    _, found = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for definition in found.values():
        definition["description"] = definition.get("description", "").split("\n")[0]
        for version in ("schema_version", "format"):
            if version in definition.get("properties", {}):  # the default is for records that are made, not read
                definition["required"] = [*(n for n in definition["required"] if n != version), version]
    for name, kinds_ in FILES.items():
        found[name] = {"anyOf": [{"$ref": f"#/$defs/{kind.__name__}"} for kind in kinds_]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Files of a run directory (docs/run-directory.md); .jsonl files line by line",
        "$defs": found,
    }


def run_directory_schema_text() -> str:
    """Text of docs/schemas/run-directory.schema.json."""
    text = json.dumps(run_directory_schema())
    schema = json.loads(text, object_hook=_without_names_of_literals)
    return json.dumps(schema, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _without_names_of_literals(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without the list of an object's keys, which msgspec writes from version 0.23 on."""
    if schema.get("propertyNames", {}).keys() == {"enum"}:
        del schema["propertyNames"]
    return schema
