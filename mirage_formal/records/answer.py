"""What commands print for programs: one answer on standard output with ``--json``, progress on standard error."""

from __future__ import annotations

import json
from typing import Any, Final, Literal

import msgspec

from mirage_formal.support.errors import MirageError

#: Of both records; a change that a reader could stumble over makes it larger.
ANSWER_VERSION: Final = 1


class UserErrorRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was wrong with a call.

    Attributes:
        where: File, line, option or field at fault; may be empty.
        what: What was expected and what was got.
        hint: What to do about it; may be empty.
    """

    where: str
    what: str
    hint: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What every command prints with ``--json``: one object, whatever happened.

    Attributes:
        schema_version: Version of this form.
        command: The command, as in "gpu run".
        exit_code: The code that the process ends with.
        result: What the command found, in a form of its own (docs/cli.md); null where it did not come to that.
        error: What was wrong with the call, where something was; null otherwise.
    """

    schema_version: Literal[1] = ANSWER_VERSION
    command: str
    exit_code: int
    result: Any
    error: UserErrorRecord | None = None


class ProgressEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A line of ``--progress json``.

    Attributes:
        schema_version: Version of this form.
        event: Always "progress".
        command: The command.
        task: What is worked on, as the name of a program or of a directory; may be empty.
        phase: What is being done.
        done: Pieces of the phase that are finished.
        total: All of them; 0 while unknown.
        elapsed_s: Seconds since the task began.
        left_s: Seconds that the phase is expected to take; null while nobody knows.
        states: States visited, of a search; those of units that are being searched among them.
        states_per_s: The same, per second of the last seconds.
        pruned: Branches cut, by the reason.
        candidates: Distinct candidates.
        best_us: Least estimated microseconds of a candidate; null before there is one.
        proved: Candidates whose verification has succeeded.
        refused: Candidates that were refused.
        remark: The latest about units that take much longer than the others, or empty.
    """

    schema_version: Literal[1] = ANSWER_VERSION
    event: Literal["progress"] = "progress"
    command: str
    task: str
    phase: str
    done: int
    total: int
    elapsed_s: float
    left_s: float | None
    states: int = 0
    states_per_s: float = 0.0
    pruned: dict[str, int] = {}
    candidates: int = 0
    best_us: float | None = None
    proved: int = 0
    refused: int = 0
    remark: str = ""


def answer_text(command: str, code: int, result: Any, error: MirageError | None = None) -> str:
    """An answer as JSON text, which is safe to print.

    Args:
        command: The command, as in "gpu run".
        code: What the process ends with.
        result: Plain values, or what msgspec encodes.
        error: What was wrong with the call.
    """
    from mirage_formal.support.terminal import json_text

    mistake = None if error is None else UserErrorRecord(where=error.where, what=error.what, hint=error.hint)
    answer = Answer(command=command, exit_code=code, result=result, error=mistake)
    return json_text(msgspec.json.format(msgspec.json.encode(answer, enc_hook=str), indent=1).decode())


def answer_schema() -> dict[str, Any]:
    """The schema; ``#/$defs/Answer`` is that of ``--json``, ``#/$defs/ProgressEvent`` of a line of progress."""
    _, found = msgspec.json.schema_components([Answer, ProgressEvent], ref_template="#/$defs/{name}")
    for definition in found.values():
        definition["description"] = definition.get("description", "").split("\n")[0]
        definition["required"] = list(definition["properties"])  # everything is written, also what has a default
        definition["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What commands print for programs (docs/cli.md): --json, and --progress json line by line",
        "$defs": found,
    }


def answer_schema_text() -> str:
    """Text of docs/schemas/command-line.schema.json."""
    return json.dumps(answer_schema(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


__all__ = ["Answer", "ProgressEvent", "UserErrorRecord", "answer_schema", "answer_schema_text", "answer_text"]
