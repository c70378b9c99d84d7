"""Cache of a GPU's results for Triton files, written to the tuning directory as soon as they are known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from mirage_formal.autotune.child import GpuMachine
from mirage_formal.autotune.plans import TuningDirectory
from mirage_formal.autotune.triton.files import TritonText
from mirage_formal.records import NumericsRecord, read, sha256, write_atomic


class TritonResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cached result of a Triton file on one GPU.

    Attributes:
        us: Microseconds of a call, median of a short run; 0 if it has none.
        failed: Error message, or empty.
        answer: Verdict on its numerics; empty if it was not compared with float64.
        numerics: The comparison.
        key: Cache key of the result.
    """

    us: float = 0.0
    failed: str = ""
    answer: str = ""
    numerics: NumericsRecord | None = None
    key: str = ""


@dataclass(frozen=True, slots=True)
class TritonResultCache:
    """Cache of results by all their inputs: the text, the µGraph, the run and our code, the GPU and versions.

    Attributes:
        place: The tuning directory.
        run: Digest of the run and of our code.
        machine: The GPU, with versions of its driver, of torch and of Triton.
    """

    place: TuningDirectory
    run: str
    machine: GpuMachine

    def get(self, one: TritonText) -> TritonResult:
        """Return the cached result of a file; an empty one if it cannot be read, or has another key."""
        path = self._path(one)
        try:
            found = msgspec.json.decode(read(path), type=TritonResult) if path.is_file() else TritonResult()
        except (msgspec.DecodeError, OSError):
            return TritonResult()
        return found if found.key == path.stem else TritonResult()

    def put(self, one: TritonText, said: TritonResult) -> None:
        """Write the result of a file to the cache."""
        path = self._path(one)
        write_atomic(path, msgspec.json.encode(msgspec.structs.replace(said, key=path.stem)))

    def file(self, one: TritonText) -> Path:
        """Write the file if it is missing, and return its path for the process that runs it."""
        path = self._root / f"{one.digest}.py"
        if not path.is_file():
            write_atomic(path, one.text.encode())
        return path

    @property
    def _root(self) -> Path:
        root = self.place.root / "triton"
        root.mkdir(exist_ok=True)
        return root

    def _path(self, one: TritonText) -> Path:
        what = (one.digest, one.graph, self.run, self.machine.device, self.machine.driver, self.machine.triton)
        return self._root / f"{sha256(msgspec.json.encode(what))}.json"


__all__ = ["TritonResult", "TritonResultCache"]
