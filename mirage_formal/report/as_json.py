"""JSON form of a report, with the same values as its other forms."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from typing import Any, Final

from mirage_formal.graph.formats.json import to_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.report.model import Report
from mirage_formal.report.proofs.formulas import Formula, text
from mirage_formal.support.terminal import json_text

#: Name of the JSON format.
SCHEMA: Final = "mirage_formal.report"
VERSION: Final = 1
_FORMULA: Final = Formula.__args__


def report_values(report: Report) -> dict[str, Any]:
    """Return a report as JSON values; formulas are text, µGraphs are as in mugraph.json."""
    return {"schema": SCHEMA, "version": VERSION, **_plain(report)}


def report_json(report: Report) -> str:
    """Return a report as the text of one JSON object; see ``report_values``."""
    return json_text(json.dumps(report_values(report), indent=1, ensure_ascii=False, allow_nan=False)) + "\n"


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return str(value) if isinstance(value, str) else value
        case KernelGraph():
            return json.loads(to_json(value))
        case tuple():
            return [_plain(one) for one in value]
        case _ if isinstance(value, _FORMULA):
            return text(value)
        case _ if is_dataclass(value):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    raise TypeError(f"expected a value of the model, got {type(value).__name__}")
