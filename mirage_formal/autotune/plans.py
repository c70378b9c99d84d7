"""Files of the autotuner: plans, prepared kernels and times; readable on machines without solvers.

A tuning directory (the user's cache, if no other is given) holds

- ``plans``: the distinct kernels of a run's candidates, with their possible schedules;
- ``kernels``: machine code of one kernel, or the reason why there is none;
- ``times/<device>.jsonl``: measured times of kernels on one GPU, one line for each measurement; the last one counts.
  The first line names the GPU;
- ``finals``: how the kernels of a directory were chosen, by the digest of its manifest;
- ``triton``: results of Triton files on one GPU, and the files as ``<digest>.py``.

All but times are entries of a cache (``cache.cache_directory``). Times are a log, which machines hand to each other.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mirage_formal.cache.cache_directory import Cache, cache_root
from mirage_formal.codegen.executable import Executable
from mirage_formal.graph.formats.json import from_json
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records import Launch, NumericsRecord, ScheduleRecord, TuningRecord, sha256
from mirage_formal.records.store_entry import CacheEntry
from mirage_formal.support.errors import RunError

_SLUG: Final = re.compile(r"[^a-z0-9]+")


#: A kernel of a plan: positions of its piece and schedule.
At = tuple[int, int]
#: Callback with the phase ("forms", "kernels", "timed", "again", "built", "measured" or "triton"), finished and all.
Watch = Callable[[str, int, int], None]


class ScheduleVariant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One schedule of a kernel.

    Attributes:
        key: Name of its file in ``kernels``: a digest of µGraph, schedule and target.
        schedule: The schedule; null if the kernel has no choice of one.
    """

    key: str
    schedule: ScheduleRecord | None


class PiecePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A distinct kernel of one or more candidates, as a µGraph of its own, with its schedules.

    Attributes:
        graph: The µGraph.
        position: Position of the launched operator.
        warm: For each input, whether an earlier kernel of the candidate has just written it.
        variants: Its schedules, the best estimate first.
    """

    graph: msgspec.Raw
    position: int
    warm: tuple[bool, ...]
    variants: tuple[ScheduleVariant, ...]


class CandidatePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A form of a candidate, with the kernels that it consists of.

    Attributes:
        name: Its directory in the run.
        form: Name of the rewriting; empty for the candidate's own form.
        us: Estimate of the cost model in microseconds.
        pieces: Its kernels in order, as positions in ``TuningPlan.pieces``.
        operators: For each piece, the operator of the form's µGraph.
        library: Whether all its products are library kernels.
        unfused: Whether every kernel of it is that of one predefined operator.
        sources: For each operator of the form's µGraph, the candidate's operator that it comes from; empty where not
            known.
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
        run: Digest of the run's program, target and candidates, and of our code.
        arch: Architecture that kernels are compiled for.
        candidates: Best first by the cost model.
        pieces: The distinct kernels of all of them.
    """

    run: str
    arch: str
    candidates: tuple[CandidatePlan, ...]
    pieces: tuple[PiecePlan, ...]

    def key(self, at: At) -> str:
        """Return the key of a kernel, given by the positions of its piece and schedule."""
        piece, variant = at
        return self.pieces[piece].variants[variant].key

    def kernels(self) -> list[At]:
        """Return all kernels, as positions of piece and schedule."""
        return [(number, at) for number, piece in enumerate(self.pieces) for at in range(len(piece.variants))]


class KernelOrigin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Inputs that determine how a kernel of some µGraph, schedule and target runs.

    Attributes:
        text: Digest of its CUDA C++ and launch; for a whole candidate, of all its kernels'
            (``kernel_build.code_digest``).
        compiler: Version of the compiler that made its machine code.
        code: Digest of our code that wrote the text; the same code writes the same text.
    """

    text: str = ""
    compiler: str = ""
    code: str = ""


class PreparedKernel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A built kernel that may run, or the reason why there is none.

    Attributes:
        refused: The obligation that does not hold, or the compiler's message; empty if it may run.
        launch: Launch of the kernel.
        outputs: Numbers of the values that it writes.
        files: Its source and its machine code.
        origin: Inputs that determine its text and machine code.
    """

    refused: str
    launch: Launch | None = None
    outputs: tuple[int, ...] = ()
    files: dict[str, bytes] = {}
    origin: KernelOrigin = KernelOrigin()


class MeasuredTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Measured time of one kernel or whole candidate.

    Attributes:
        key: Key of the kernel.
        us: Median microseconds of a call; 0 if it failed.
        low: Microseconds of the fastest replay.
        replays: Number of timed replays.
        driver: Version of the CUDA driver.
        failed: Error message, or empty.
        text, compiler, code: As in ``KernelOrigin``.
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


class TimesHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Header line of a file of times: it names the GPU of the measurements below it.

    Attributes:
        device: The GPU, as it names the file.
    """

    device: str


class TritonResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Result of a Triton file on one GPU.

    Attributes:
        us: Microseconds of a call, median of a short run; 0 if it has none.
        failed: Error message, or empty.
        answer: Verdict on its numerics; empty if it was not compared with float64.
        numerics: The comparison.
    """

    us: float = 0.0
    failed: str = ""
    answer: str = ""
    numerics: NumericsRecord | None = None


class PlanEntry(CacheEntry[tuple[str, str], TuningPlan], frozen=True, kw_only=True):
    """Entry of a plan, by run and architecture."""


class KernelEntry(CacheEntry[str, PreparedKernel], frozen=True, kw_only=True):
    """Entry of a built kernel, by the key that a plan gives it."""


class ChoiceEntry(CacheEntry[str, TuningRecord], frozen=True, kw_only=True):
    """Entry of how the kernels of a directory were chosen, by the digest of its manifest."""


class TritonEntry(CacheEntry[tuple[str | int, ...], TritonResult], frozen=True, kw_only=True):
    """Entry of a Triton file's result, by all that decides it."""


def is_time_valid(one: MeasuredTime, of: KernelOrigin) -> bool:
    """Return whether a time applies to a kernel: same text, same compiler."""
    return bool(one.text) and (one.text, one.compiler) == (of.text, of.compiler)


class TuningDirectory:
    """Tuning directory: reads and writes plans, kernels and times.

    Args:
        root: The directory; the user's cache if None.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = cache_root() / "tuning" if root is None else root
        self.plans = Cache("plans", PlanEntry, self.root)
        self.kernels = Cache("kernels", KernelEntry, self.root)
        self.choices = Cache("finals", ChoiceEntry, self.root)
        self.triton = Cache("triton", TritonEntry, self.root)
        (self.root / "times").mkdir(parents=True, exist_ok=True)

    def origin(self, key: str) -> KernelOrigin:
        """Return the origin of a kernel; with empty fields if there is no such kernel."""
        found = self.kernels.get(key)
        return KernelOrigin() if found is None else found.origin

    def usable(self, plan: TuningPlan, wanted: Sequence[At]) -> list[At]:
        """Return the kernels, by positions of piece and schedule, that were built and may run."""
        found = ((at, self.kernels.get(plan.key(at))) for at in wanted)
        return [at for at, one in found if one is not None and not one.refused]

    # --- times

    def times_path(self, device: str) -> Path:
        """Return the path of a GPU's file of times."""
        return self.root / "times" / f"{_device_file_name(device)}.jsonl"

    def times(self, device: str, driver: int | None = None, compiler: str = "") -> dict[str, MeasuredTime]:
        """Return the measurements on a GPU, by kernel.

        Sound: a line counts only below one that names this GPU, so a file that was written for another has no times.

        Args:
            device: Name of the GPU.
            driver: Required version of the driver; measurements with other versions, and those before the process had
                settled, are left out. All measurements count, if left out.
            compiler: Required version of the compiler; any, if empty.
        """
        found: dict[str, MeasuredTime] = {}
        path, whose = self.times_path(device), ""
        for text in path.read_bytes().splitlines() if path.is_file() else ():
            one = _parse_times_line(text)
            if isinstance(one, TimesHeader):
                whose = one.device
            elif one is None or whose != _device_file_name(device):
                continue
            elif driver is None or (one.settled and driver == one.driver and compiler in ("", one.compiler)):
                found[one.key] = one
        return found

    def devices(self) -> list[str]:
        """Return the names of the files of times, without their suffix."""
        return sorted(path.stem for path in (self.root / "times").glob("*.jsonl"))

    def keep_times(self, device: str, times: Iterable[MeasuredTime]) -> None:
        """Append measurements to the file of times of a GPU."""
        with self.times_path(device).open("ab") as file:
            if not file.tell():
                file.write(msgspec.json.encode(TimesHeader(_device_file_name(device))) + b"\n")
            for one in times:
                file.write(msgspec.json.encode(one) + b"\n")


def _parse_times_line(text: bytes) -> MeasuredTime | TimesHeader | None:
    """Parse a line of a file of times; return None if it is truncated."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=MeasuredTime)
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(text, type=TimesHeader)
    return None


def _device_file_name(device: str) -> str:
    """Return the name of a GPU as a file name: small letters and digits, all else as "-"."""
    return _SLUG.sub("-", device.lower()).strip("-")


def kernel_graph(piece: PiecePlan) -> KernelGraph:
    """Return the µGraph of one kernel of a tuning plan, decoded from the JSON that the plan holds."""
    return from_json(bytes(piece.graph), "tuning plan")


def executable_of(piece: PiecePlan, made: PreparedKernel) -> Executable:
    """Return a built kernel as an executable.

    Raises:
        RunError: It may not run.
    """
    if made.refused or made.launch is None:
        raise RunError(f"expected a kernel that may run, got one that is refused: {made.refused}", where="tuning")
    graph = kernel_graph(piece)
    return Executable(sha256(bytes(piece.graph)), graph, graph, (made.launch,), made.outputs, dict(made.files))
