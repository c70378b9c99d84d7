"""The records of a form of a candidate: the parts of the candidate, and what takes the places of some."""

from __future__ import annotations

from typing import Annotated

import msgspec

from mirage_formal.records.run import Count, Record, VersionedRecord


class ProvedRecord(Record, frozen=True):
    """A graph in the place of a part.

    Attributes:
        graph: It, in the form of mugraph.json, over what the part reads, in the order of its first use.
        proof: That it computes what the part does, in the form of docs/proof.md.
    """

    graph: msgspec.Raw
    proof: msgspec.Raw


class FormPartRecord(Record, frozen=True, kw_only=True):
    """Some operators of a candidate.

    Attributes:
        operators: Their numbers, ascending.
        form: What takes their place; null if they stay as they are.
    """

    operators: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    form: ProvedRecord | None


class FormRecord(VersionedRecord, frozen=True, kw_only=True):
    """equivalence.json of a directory of kernels: why a form is equal to its candidate, part by part.

    Attributes:
        candidate: The candidate's µGraph, in the form of mugraph.json.
        parts: All of its operators, in an order in which the parts can be computed.
    """

    candidate: msgspec.Raw
    parts: Annotated[tuple[FormPartRecord, ...], msgspec.Meta(min_length=1)]


__all__ = ["FormPartRecord", "FormRecord", "ProvedRecord"]
