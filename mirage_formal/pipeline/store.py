"""A run's directory: created, resumed, appended to, and finished in one step.

docs/run-directory.md describes every file. Only search.jsonl grows while a search runs; everything else is written
whole and renamed into place, and summary.json comes last, so a directory with a summary is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.errors import FormatError, RunError
from mirage_formal.journal import (
    CANDIDATES,
    KERNELS,
    MANIFEST_FILE,
    MAX_LINE_BYTES,
    RUN_FILE,
    SEARCH_FILE,
    SUMMARY_FILE,
    ManifestRecord,
    RunRecord,
    SummaryRecord,
    UnitRecord,
    confined,
    decode,
    line,
    pretty,
    read,
    sealed,
    sha256,
    write_atomic,
)

#: Kernels are made from the candidates, so they go with them.
_OURS: Final = (RUN_FILE, SEARCH_FILE, SUMMARY_FILE, CANDIDATES, KERNELS)
_BUILDING: Final = ".candidates"


class Store:
    """The directory of one run.

    Attributes:
        root: The directory.
        units: The newest record of every unit that is in the journal.
    """

    def __init__(self, root: Path, run: RunRecord, units: dict[int, UnitRecord]) -> None:
        self.root = root
        self.run = run
        self.units = units

    @classmethod
    def open(cls, root: Path, run: RunRecord, *, resume: bool) -> Store:
        """Start a run in ``root``, or continue the one that is there.

        A run that is there already is replaced unless ``resume`` is set; a directory with anything else is left alone.

        Raises:
            RunError: Not a directory, holds something other than a run, or (with ``resume``) another run.
        """
        if root.exists() and not root.is_dir():
            raise RunError("expected a directory, got a file", where=str(root), hint="choose another --out")
        if resume:
            return cls._resume(root, run)
        if root.is_dir() and any(root.iterdir()) and not (root / RUN_FILE).is_file():
            hint = "choose another --out, or empty it yourself"
            raise RunError("expected a new directory or an earlier run, got other files", where=str(root), hint=hint)
        root.mkdir(parents=True, exist_ok=True)
        for name in _OURS:
            _remove(root / name)
        write_atomic(root / SEARCH_FILE, b"")
        write_atomic(root / RUN_FILE, pretty(run))
        return cls(root, run, {})

    @classmethod
    def _resume(cls, root: Path, run: RunRecord) -> Store:
        path = root / RUN_FILE
        if not path.is_file():
            hint = "leave --resume out to start a new run"
            raise RunError("expected a run to resume, got none", where=str(root), hint=hint)
        earlier = decode(read(path), RunRecord, str(path))
        if earlier.key != run.key:
            raise RunError(_differences(earlier, run), where=str(path), hint="resume with the same program and options")
        if earlier.versions != run.versions:  # the record would be untrue of what is found now
            others = dict(sorted(earlier.versions.items() - run.versions.items()))
            what = f"expected the packages that the run was started with, {others or 'and no more'}, got others"
            raise RunError(what, where=str(path), hint="install those versions, or start a new run")
        journal = root / SEARCH_FILE
        units = {record.unit: record for record in _journal(journal, run.key)}
        if journal.is_file():  # drop the part of a line that a kill may have left behind
            whole = journal.read_bytes()
            if not whole.endswith(b"\n"):
                write_atomic(journal, whole[: whole.rfind(b"\n") + 1])
        return cls(root, earlier, units)

    def append(self, record: UnitRecord) -> None:
        """Add one finished unit to the journal."""
        with (self.root / SEARCH_FILE).open("ab") as file:
            file.write(line(record))
            file.flush()
        self.units[record.unit] = record

    def finish(
        self, candidates: Sequence[tuple[str, str, Mapping[str, bytes]]], summary: SummaryRecord
    ) -> SummaryRecord:
        """Write the candidates and then the summary, which makes the run complete.

        Args:
            candidates: For each: its directory below the root, the digest of its graph, and its files by relative path.
            summary: The summary, whose manifest is filled in here.
        """
        _remove(self.root / SUMMARY_FILE)
        building = self.root / _BUILDING
        _remove(building)
        building.mkdir()
        manifest = {name: sha256((self.root / name).read_bytes()) for name in (RUN_FILE, SEARCH_FILE)}
        for directory, digest, files in candidates:
            record = ManifestRecord(candidate=digest, files={n: sha256(files[n]) for n in sorted(files)})
            for name, data in {**files, MANIFEST_FILE: sealed(record)}.items():
                path = confined(building, str(Path(directory).relative_to(CANDIDATES) / name))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
                manifest[f"{directory}/{name}"] = sha256(data)
        _remove(self.root / CANDIDATES)
        building.rename(self.root / CANDIDATES)
        self._drop_kernels({Path(directory).name for directory, _, _ in candidates})
        complete = msgspec.structs.replace(summary, manifest=dict(sorted(manifest.items())))
        data = sealed(complete)
        write_atomic(self.root / SUMMARY_FILE, data)
        return decode(data, SummaryRecord, SUMMARY_FILE)

    def _drop_kernels(self, reported: set[str]) -> None:
        """Remove kernels of candidates that an earlier session reported and this one does not."""
        place = self.root / KERNELS
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.name not in reported:
                _remove(path)


def _journal(path: Path, key: str) -> Iterator[UnitRecord]:
    """The complete lines of a journal; one that belongs to another run is refused."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            where = f"{path}:{number}"
            if not text.endswith(b"\n"):
                return
            if len(text) > MAX_LINE_BYTES:
                raise FormatError(f"expected at most {MAX_LINE_BYTES} bytes in a line, got {len(text)}", where=where)
            record = decode(text, UnitRecord, where)
            if record.key != key:
                hint = "the journal was changed; start a new run"
                raise RunError(
                    f"expected a line of run {key[:12]}, got one of {record.key[:12]}", where=where, hint=hint
                )
            yield record


def _differences(earlier: RunRecord, now: RunRecord) -> str:
    old = msgspec.structs.asdict(earlier.identity)
    new = msgspec.structs.asdict(now.identity)
    names = [name for name in old if old[name] != new[name]] or ["key"]
    what = {"program": "another program", "space": "another search space"}
    shown = "; ".join(f"{what.get(n, 'another ' + n)} ({_short(old.get(n))}, now {_short(new.get(n))})" for n in names)
    return f"expected the run that is being resumed, got {shown}"


def _short(value: object) -> str:
    return str(value)[:12]


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
