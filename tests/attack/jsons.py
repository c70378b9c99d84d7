"""Hostile JSON before everything that reads JSON: refused with a message, or read as something that is well-formed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from mirage_formal import records
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import ProofError
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.formats.mirage.checkpoint_reader import from_mirage
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verifier import faults
from mirage_formal.support.errors import MirageError
from tests.attack import directories
from tests.attack.texts import STRINGS, hostile
from tests.attack.trial import Breach
from tests.kit.checkpoints import first_checkpoints, mirage_files
from tests.kit.proofs.hand_proofs import true_proofs

#: Longest message of a refusal.
MESSAGE: Final = 4000


@cache
def _seeds() -> tuple[tuple[str, bytes, Callable[[bytes], object]], ...]:
    """Good texts, and what reads each."""
    found: list[tuple[str, bytes, Callable[[bytes], object]]] = []
    for root in directories.runs():
        for path in sorted(root.rglob("*.json*")):
            reader = _reader(path.name, path.parent.parent.name)
            if reader is not None:
                for data in (
                    path.read_bytes().splitlines(keepends=True) if path.suffix == ".jsonl" else [path.read_bytes()]
                ):
                    found.append((path.name, data, reader))
    for accumulator in ("tb_accum_nored_op", "tb_accum_red_ld_sum_op", "tb_accum_red_ld_rms_op"):
        text = json.dumps(mirage_files.hand_written(accumulator)).encode()
        found.append(("mirage.json", text, lambda data: from_mirage(data, "file")))
    first = json.dumps(first_checkpoints.file_of(first_checkpoints.lora(4, 8, 12, 2, grid=3))).encode()
    found.append(("mirage.json", first, lambda data: from_mirage(data, "file")))
    for (name, program, candidate), proof in true_proofs():
        found.append((f"proof of {name}", proof.encode(), _replayed(program, candidate)))
    return tuple(found)


def _replayed(program: KernelGraph, candidate: KernelGraph) -> Callable[[bytes], object]:
    return lambda data: replay(program, candidate, data)


def _reader(name: str, above: str) -> Callable[[bytes], object] | None:
    kinds: dict[str, Any] = {
        "run.json": records.RunRecord,
        "search.jsonl": records.UnitRecord,
        "summary.json": records.SummaryRecord,
        "verification.json": records.VerificationRecord,
        "launch.json": records.LaunchRecord,
        "plan.json": records.PlanRecord,
        "obligations.jsonl": records.ObligationRecord,
        "numerics.json": records.NumericsRecord,
        "measure.json": records.MeasureRecord,
        "manifest.json": records.KernelManifestRecord if above == "kernels" else records.ManifestRecord,
    }
    if name == "proof.jsonl":
        return lambda data: records.decode_proof(data, "line")
    if name in ("mugraph.json", "stabilized.json"):
        return lambda data: from_json(data, "graph")
    kind = kinds.get(name)
    return None if kind is None else lambda data: records.decode(data, kind, "file")


def text(rng: random.Random, number: int = 0) -> str:
    """One hostile change of a good text, of its bytes or of its structure."""
    seeds = _seeds()
    name, data, reader = seeds[number % len(seeds)]
    data = hostile(data, rng) if rng.random() < 0.6 else _restructured(data, rng)
    try:
        value = reader(data)
    except ProofError as error:
        return _refused(name, error)
    except MirageError as error:
        return _refused(name, error)
    for graph in value if isinstance(value, tuple) else (value,):
        if isinstance(graph, KernelGraph):
            faults(graph)
    return "read"


def _refused(name: str, error: MirageError) -> str:
    said = str(error)
    if len(said) > MESSAGE or any(ord(c) < 32 and c != "\n" for c in said):
        raise Breach(f"{name}: the message {said[:200]!r} of {len(said)} characters")
    return "refused"


def _restructured(data: bytes, rng: random.Random) -> bytes:
    """Some values of a JSON text replaced, moved or doubled."""
    value = json.loads(data)
    for _ in range(rng.randint(1, 3)):
        every = list(directories.places(value))
        if not every:
            break
        *above, last = rng.choice(every)
        holder = value
        for key in above:
            holder = holder[key]
        match rng.randrange(4):
            case 0:
                holder[last] = rng.choice(
                    (None, True, -1, 0, 1.5, 2**63, 10**30, 1e308, [], {}, "x", rng.choice(STRINGS), [[[[]]]] * 3)
                )
            case 1:
                del holder[last]
            case 2:
                other = value
                for key in rng.choice(every):
                    if not isinstance(other, dict | list) or (isinstance(other, list) and key >= len(other)):
                        break
                    other = other[key] if not isinstance(other, dict) else other.get(key)
                holder[last] = json.loads(json.dumps(other))
            case _:
                if isinstance(holder, list):
                    holder.insert(last, json.loads(json.dumps(holder[last])))
                else:
                    holder[str(last) + "_"] = holder[last]
    return json.dumps(value).encode("utf-8", "surrogatepass")


__all__ = ["text"]
