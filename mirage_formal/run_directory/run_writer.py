"""Directory of a run: created, resumed, appended to, and finished in one step.

docs/run-directory.md describes every file. Only search.jsonl grows while a search runs; every other file is written
completely and renamed. summary.json comes last, so a directory with a summary is complete. The rules of removal are in
``directory_layout``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.records import (
    CANDIDATES,
    EXHAUSTED_FILE,
    KERNELS,
    MANIFEST_FILE,
    MAX_LINE_BYTES,
    RUN_FILE,
    SEARCH_FILE,
    SUMMARY_FILE,
    ExhaustedRecord,
    ManifestRecord,
    RunRecord,
    SummaryRecord,
    UnitRecord,
    decode,
    json_line,
    name_path_in_errors,
    read_file,
    seal_record,
    sha256,
    to_indented_json,
    write_atomic,
    write_files,
)
from mirage_formal.run_directory.directory_layout import (
    CANDIDATE_SET,
    KERNELS_OF_ONE,
    RUN,
    Folder,
    list_contents,
    remove,
    remove_file,
    remove_temporary_files,
    warn_of_removed_results,
)
from mirage_formal.run_directory.overwrite import clear_earlier_search, expect_resumed
from mirage_formal.support.errors import FormatError, RunError

#: Threads that write files of evidence.
_WRITERS: Final = 2


class RunStore:
    """The directory of one run.

    Attributes:
        root: The directory.
        units: The newest record of every unit in the journal.
    """

    def __init__(self, root: Path, run: RunRecord, units: dict[int, UnitRecord]) -> None:
        self.root = root
        self.run = run
        self.units = units

    @classmethod
    def open(cls, root: Path, run: RunRecord, *, resume: bool = False, force: bool = False) -> RunStore:
        """Start a run in ``root``, resume the one that is there, or replace it.

        An earlier run is resumed with ``resume`` and replaced with ``force``. Otherwise it is left alone, like a
        directory with any file that no search has written.

        Raises:
            RunError: The directory is not empty and may not be used; see ``clear_earlier_search``. With ``resume``,
                another run.
        """
        if resume:
            return cls._resume(root, run)
        clear_earlier_search(root, force=force)
        write_atomic(root / RUN_FILE, to_indented_json(run))
        write_atomic(root / SEARCH_FILE, b"")
        return cls(root, run, {})

    @classmethod
    def _resume(cls, root: Path, run: RunRecord) -> RunStore:
        path = root / RUN_FILE
        if not path.is_file():
            hint = "leave --resume out to start a new run"
            raise RunError("expected a run to resume, got none", where=str(root), hint=hint)
        earlier = decode(read_file(path), RunRecord, str(path))
        expect_resumed(path, *({**msgspec.structs.asdict(one.identity), "key": one.key} for one in (earlier, run)))
        if earlier.versions != run.versions:  # the record would not describe this session's results
            others = dict(sorted(earlier.versions.items() - run.versions.items()))
            what = f"expected the packages that the run was started with, {others or 'and no more'}, got others"
            raise RunError(what, where=str(path), hint="install those versions, or start a new run")
        list_contents(root, RUN).refuse_foreign()
        remove_temporary_files(root, RUN)
        journal = root / SEARCH_FILE
        units = {record.unit: record for record in read_journal(journal, run.key)}
        if journal.is_file():  # drop a partial line after a kill; works on a full disk
            data = journal.read_bytes()
            os.truncate(journal, data.rfind(b"\n") + 1)
        return cls(root, earlier, units)

    def append(self, record: UnitRecord) -> None:
        """Append one finished unit to the journal; on a full disk, no part of the line stays."""
        path = self.root / SEARCH_FILE
        with name_path_in_errors(path), path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            data = memoryview(json_line(record))
            try:
                while data:
                    data = data[file.write(data) :]
            except BaseException:
                file.truncate(size)
                raise
        self.units[record.unit] = record

    def finish(
        self,
        candidates: Sequence[tuple[str, str, Mapping[str, bytes]]],
        summary: SummaryRecord,
        exhausted: ExhaustedRecord | None,
    ) -> SummaryRecord:
        """Write the candidates, the bound and then the summary, which makes the run complete.

        Args:
            candidates: For each: its directory below the root, the digest of its graph, and its files by relative path.
            summary: The summary, whose manifest is filled in here.
            exhausted: What was tried and dropped, with the lower bound; None if the search ended before it was planned.
        """
        remove_file(self.root / SUMMARY_FILE)
        remove_file(self.root / EXHAUSTED_FILE)
        own_files = [RUN_FILE, SEARCH_FILE]
        if exhausted is not None:
            write_atomic(self.root / EXHAUSTED_FILE, to_indented_json(exhausted))
            own_files.append(EXHAUSTED_FILE)
        manifest = {name: sha256((self.root / name).read_bytes()) for name in own_files}
        manifest |= replace_evidence(self.root, CANDIDATES, CANDIDATE_SET, candidates)
        self._drop_kernels({Path(directory).name for directory, _, _ in candidates})
        complete = msgspec.structs.replace(summary, manifest=dict(sorted(manifest.items())))
        data = seal_record(complete)
        write_atomic(self.root / SUMMARY_FILE, data)
        return decode(data, SummaryRecord, SUMMARY_FILE)

    def _drop_kernels(self, reported: set[str]) -> None:
        """Remove kernels of candidates that an earlier session reported and this one does not."""
        place = self.root / KERNELS
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            if path.name not in reported:
                warn_of_removed_results(
                    list_contents(path, KERNELS_OF_ONE), "kernels of a candidate that is no longer reported"
                )
                remove(path, KERNELS_OF_ONE)


def replace_evidence(
    root: Path, name: str, kind: Folder, evidence: Sequence[tuple[str, str, Mapping[str, bytes]]]
) -> dict[str, str]:
    """Write directories of evidence, each with a manifest, in the place of those of an earlier session.

    Where that fails, as on a full disk, the earlier ones stay, and the room of the new ones is given back.

    Args:
        root: The directory of a run or of a whole program.
        name: The directory below it that gets them.
        kind: The names that we write there.
        evidence: For each: its directory relative to the root, the digest of its graph, and its files by relative path.

    Returns:
        Digests of all their files, by paths relative to the root.
    """
    building, manifest = root / f".{name}", dict[str, str]()
    remove(building, kind)

    def write(directory: str, digest: str, files: Mapping[str, bytes]) -> dict[str, str]:
        digests = {n: sha256(files[n]) for n in sorted(files)}
        sealed = seal_record(ManifestRecord(candidate=digest, files=digests))
        write_files(building / Path(directory).relative_to(name), {**files, MANIFEST_FILE: sealed})
        return {f"{directory}/{file}": each for file, each in {**digests, MANIFEST_FILE: sha256(sealed)}.items()}

    try:
        building.mkdir()
        with ThreadPoolExecutor(_WRITERS) as writers:  # the system takes most of a millisecond for each file
            for written in writers.map(write, *zip(*evidence, strict=True)) if evidence else ():
                manifest |= written
    except BaseException:
        remove(building, kind)
        raise
    remove(root / name, kind)
    building.rename(root / name)
    return manifest


def read_journal(path: Path, key: str) -> Iterator[UnitRecord]:
    """Yield the records of a journal's complete lines; a last line that is being written is left out.

    Args:
        path: The journal; without the file there are no records.
        key: Key of the run.

    Raises:
        RunError: A line belongs to another run.
        FormatError: A line is no record, or too long.
    """
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
