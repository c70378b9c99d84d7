"""Files of the autotuner: plans, prepared kernels and times; read where there are no solvers.

A tuning directory (the user's cache, if no other is given) holds

- ``plans/<id>.json``: the kernels of a run's candidates, each once, with the schedules that they can have;
- ``kernels/<key>``: machine code of one kernel, or why there is none;
- ``times/<device>.jsonl``: what one GPU took for each, a line for each measurement; the last one counts. Above them a
  line says of which GPU they are;
- ``finals/<digest>.json``: how the kernels of a directory were chosen, by the digest of its manifest;
- ``triton/<digest>.py`` and ``triton/<key>.json``: Triton files, and what one GPU said of each.

A file of kernels, times, finals or answers holds its own key too: one that was put in the place of another counts as
none.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal import strict_json
from mirage_formal.device.cache import cache_dir, replace_file
from mirage_formal.errors import FormatError, RunError
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.kernels.executable import Executable
from mirage_formal.records import Launch, ScheduleRecord, TuningRecord, read, sha256

#: Bytes of a kernel's file, unpacked.
_MOST_UNPACKED: Final = 1 << 26
_SEAL: Final = 32
_SLUG: Final = re.compile(r"[^a-z0-9]+")


#: A kernel of a plan: positions of piece and schedule.
At = tuple[int, int]
#: Told what is done, of how much: "forms", "kernels", "timed", "again", "built", "measured" or "triton".
Watch = Callable[[str, int, int], None]


class Variant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One schedule of a kernel.

    Attributes:
        key: Name of its file in ``kernels``: a digest of µGraph, schedule and target.
        schedule: The schedule; null if the kernel has no choice of one.
    """

    key: str
    schedule: ScheduleRecord | None


class PiecePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kernel of some candidates, as a µGraph of its own.

    Attributes:
        graph: The µGraph.
        position: Of the operator that is launched.
        warm: For each input, whether an earlier kernel of the candidate has just written it.
        variants: Its schedules, the likeliest first.
    """

    graph: msgspec.Raw
    position: int
    warm: tuple[bool, ...]
    variants: tuple[Variant, ...]


class CandidatePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A candidate, or another form of one.

    Attributes:
        name: Its directory in the run.
        form: What was rewritten; empty for the candidate as it was found.
        us: The cost model's estimate.
        pieces: Its kernels in order, as positions in ``TuningPlan.pieces``.
        operators: For each piece the operator of the form's µGraph.
        library: Whether no kernel of it but those of predefined products computes a product.
        unfused: Whether every kernel of it is that of one predefined operator.
        sources: For each operator of the form's µGraph, the candidate's that it comes from; empty where not known.
    """

    name: str
    form: str
    us: float
    pieces: tuple[int, ...]
    operators: tuple[int, ...]
    library: bool = False
    unfused: bool = False
    sources: tuple[int, ...] = ()


class TuningPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tuning plan of a run: its candidates, and the distinct kernels to time.

    Attributes:
        run: Digest of what was read of the run.
        arch: What kernels are compiled for.
        candidates: Best first by the cost model.
        pieces: The distinct kernels of all of them.
    """

    run: str
    arch: str
    candidates: tuple[CandidatePlan, ...]
    pieces: tuple[PiecePlan, ...]

    def key(self, at: At) -> str:
        """The key of a kernel, by the positions of its piece and schedule."""
        piece, variant = at
        return self.pieces[piece].variants[variant].key


class Origin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs that determine how a kernel of some µGraph, schedule and target runs.

    Attributes: text: Digest of its CUDA C++ and launch; of a whole candidate, of all of them
        (``run.kernel_build.code_digest``). compiler: Version of the compiler that made its machine code. code: Digest
        of our code that wrote the text; the same code writes the same text.
    """

    text: str = ""
    compiler: str = ""
    code: str = ""


class Prepared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kernel that may run, or why there is none.

    Attributes:
        refused: The obligation that does not hold, or what the compiler said; empty if it may run.
        launch: How it is launched.
        outputs: Numbers of the values that it writes.
        files: Its source and its machine code.
        origin: What made it.
    """

    refused: str
    launch: Launch | None = None
    outputs: tuple[int, ...] = ()
    files: dict[str, bytes] = {}
    origin: Origin = Origin()


class Timed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured time of one kernel or whole candidate.

    Attributes:
        key: The kernel.
        us: Microseconds of a call, median; 0 if it failed.
        low: Fastest replay.
        replays: Timed replays.
        driver: Version of the CUDA driver.
        failed: What went wrong, or empty.
        text, compiler, code: See ``Origin``.
        settled: Whether the process had settled (see ``device.measure``); times of earlier versions may be less than
            later ones.
    """

    key: str
    us: float
    low: float
    replays: int
    driver: int
    failed: str = ""
    compiler: str = ""
    text: str = ""
    code: str = ""
    settled: bool = False


class TimesOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header line of a file of times: it names the GPU of the measurements below it.

    Attributes:
        device: The GPU, as it names the file.
    """

    device: str


class Chosen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Record of how the kernels of a directory were chosen.

    Attributes:
        manifest: Digest of its manifest.
        tuning: How.
    """

    manifest: str
    tuning: TuningRecord


def holds(one: Timed, of: Origin) -> bool:
    """Return whether a time is that of a kernel: of the same text, by the same compiler."""
    return bool(one.text) and (one.text, one.compiler) == (of.text, of.compiler)


class Place:
    """Tuning directory: reads and writes plans, kernels and times.

    Args:
        root: The directory; the user's cache if None.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_dir("tuning") if root is None else root
        for name in ("plans", "kernels", "times", "finals"):
            (self.root / name).mkdir(parents=True, exist_ok=True)

    # --- plans

    def plan_path(self, run: str, arch: str) -> Path:
        """Return the path of a run's plan."""
        return self.root / "plans" / f"{sha256(f'{run} {arch}'.encode())[:32]}.json"

    def plan(self, run: str, arch: str) -> TuningPlan | None:
        """The plan of a run, if it is there and whole."""
        path = self.plan_path(run, arch)
        return read_plan(path) if path.is_file() else None

    def keep_plan(self, plan: TuningPlan) -> None:
        """Write a plan to its file, atomically."""
        replace_file(self.plan_path(plan.run, plan.arch), msgspec.json.encode(plan))

    # --- kernels

    def prepared(self, key: str) -> Prepared | None:
        """A kernel; None if it was not made yet, or its file is damaged or that of another key."""
        try:
            data = (self.root / "kernels" / key).read_bytes()
        except OSError:
            return None
        if _seal(key, data[_SEAL:]) != data[:_SEAL]:
            return None
        unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            unpacked = unpacker.decompress(data[_SEAL:], _MOST_UNPACKED)
            return None if unpacker.unconsumed_tail else msgspec.msgpack.decode(unpacked, type=Prepared)
        except (zlib.error, msgspec.DecodeError):
            return None

    def keep_kernel(self, key: str, made: Prepared) -> None:
        """Write a prepared kernel to its file, compressed and sealed with its key."""
        data = gzip.compress(msgspec.msgpack.encode(made), compresslevel=6, mtime=0)
        replace_file(self.root / "kernels" / key, _seal(key, data) + data)

    def origin(self, key: str) -> Origin:
        """Return the origin of a kernel; with empty fields if there is no such kernel."""
        found = self.prepared(key)
        return Origin() if found is None else found.origin

    def usable(self, plan: TuningPlan, wanted: Sequence[At]) -> list[At]:
        """Return those kernels, by positions of piece and schedule, that were made and may run."""
        found = []
        for at in wanted:
            one = self.prepared(plan.key(at))
            if one is not None and not one.refused:
                found.append(at)
        return found

    # --- what was chosen

    def keep_final(self, manifest: str, tuning: TuningRecord) -> None:
        """Write how the kernels of a directory were chosen."""
        replace_file(self.root / "finals" / f"{manifest}.json", msgspec.json.encode(Chosen(manifest, tuning)))

    def final(self, manifest: str) -> TuningRecord | None:
        """Return how the kernels of a directory were chosen, if tuning chose them."""
        path = self.root / "finals" / f"{manifest}.json"
        if not path.is_file():
            return None
        try:
            found = msgspec.json.decode(read(path), type=Chosen)
        except msgspec.DecodeError:
            return None
        return found.tuning if found.manifest == manifest else None

    # --- times

    def times_path(self, device: str) -> Path:
        """Return the path of a GPU's file of times."""
        return self.root / "times" / f"{_slug(device)}.jsonl"

    def times(self, device: str, driver: int | None = None, compiler: str = "") -> dict[str, Timed]:
        """Return the measurements on a GPU, by kernel.

        Sound: a line counts only below one that names this GPU, so a file that was written for another has no times.

        Args:
            device: Its name.
            driver: Version with which is measured now: what was measured with others does not count then, nor what was
                measured before the process had settled. Everything counts, if left out.
            compiler: Likewise; of the compiler.
        """
        found: dict[str, Timed] = {}
        path, whose = self.times_path(device), ""
        for text in path.read_bytes().splitlines() if path.is_file() else ():
            one = _line(text)
            if isinstance(one, TimesOf):
                whose = one.device
            elif one is None or whose != _slug(device):
                continue
            elif driver is None or (one.settled and driver == one.driver and compiler in ("", one.compiler)):
                found[one.key] = one
        return found

    def devices(self) -> list[str]:
        """Names of the files of times, without their ending."""
        return sorted(path.stem for path in (self.root / "times").glob("*.jsonl"))

    def keep_times(self, device: str, times: Iterable[Timed]) -> None:
        """Append measurements to the file of times of a GPU."""
        with self.times_path(device).open("ab") as file:
            if not file.tell():
                file.write(msgspec.json.encode(TimesOf(_slug(device))) + b"\n")
            for one in times:
                file.write(msgspec.json.encode(one) + b"\n")


def _line(text: bytes) -> Timed | TimesOf | None:
    """A line of times; None if it was cut off."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=Timed)
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=TimesOf)
    return None


def _slug(device: str) -> str:
    """The name of a GPU, as it names files."""
    return _SLUG.sub("-", device.lower()).strip("-")


def _seal(key: str, data: bytes) -> bytes:
    """Return the header of a kernel file: a digest of key and data, so that no other kernel's file takes its place."""
    return hashlib.sha256(key.encode() + b"\0" + data).digest()


def read_plan(path: Path) -> TuningPlan:
    """Read a tuning plan.

    Raises:
        FormatError: It is none.
    """
    data = read(path)
    strict_json.load(data, str(path), hint="remove it; it is made again")
    try:
        return msgspec.json.decode(data, type=TuningPlan)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"expected a tuning plan, got: {error}", where=str(path), hint="remove it") from None


def graph_of(piece: PiecePlan) -> KernelGraph:
    """The µGraph of a kernel."""
    return from_json(bytes(piece.graph), "tuning plan")


def executable_of(piece: PiecePlan, made: Prepared) -> Executable:
    """A kernel, ready to be loaded.

    Raises:
        RunError: It may not run.
    """
    if made.refused or made.launch is None:
        raise RunError(f"expected a kernel that may run, got one that is refused: {made.refused}", where="tuning")
    graph = graph_of(piece)
    return Executable(sha256(bytes(piece.graph)), graph, graph, (made.launch,), made.outputs, dict(made.files))
