"""Steps of a check: a failure names the file and the step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from mirage_formal.records import read_file, resolve_inside, sha256
from mirage_formal.support.errors import FormatError, MirageError
from mirage_formal.support.limits import MAX_DIRECTORY_BYTES, MAX_ENTRIES, MAX_LEVELS

R = TypeVar("R")


class UndefinedValueError(Exception):
    """Error in a field: a denominator is zero, a radicand is no residue, or a constant has no residue."""


class CheckFailed(Exception):
    """Error: the first check that fails.

    Attributes:
        file: The file at fault.
        step: Name of the failed step.
        what: The expected and the actual value.
        corrupt: Whether the file cannot even be parsed.
    """

    def __init__(self, file: str, step: str, what: str, *, corrupt: bool = False) -> None:
        super().__init__(file, step, what)
        self.file = file
        self.step = step
        self.what = what
        self.corrupt = corrupt

    def __reduce__(self) -> tuple[object, ...]:
        return _failed, (self.file, self.step, self.what, self.corrupt)


def _failed(file: str, step: str, what: str, corrupt: bool) -> CheckFailed:
    return CheckFailed(file, step, what, corrupt=corrupt)


@contextmanager
def step(file: Path | str, name: str, *, corrupt: bool = False) -> Iterator[None]:
    """Attach the file and the name of a step to errors that are raised inside.

    Sound: whatever goes wrong inside, the step has not been established.
    """
    _send_event("step", (str(file), name))
    try:
        yield
    except CheckFailed:
        raise
    except MirageError as error:
        raise CheckFailed(str(file), name, error.what, corrupt=corrupt) from error
    except UndefinedValueError as error:
        raise CheckFailed(str(file), name, f"expected a value, got none: {error}", corrupt=corrupt) from error
    except Exception as error:
        what = f"cannot be established: {type(error).__name__}: {str(error)[:300]}"
        raise CheckFailed(str(file), name, what, corrupt=corrupt) from error
    finally:
        _send_event("step", None)


#: Listener for this process's steps and results; None if there is none.
_listener: Listener | None = None


class Listener:
    """Writing end of a pipe that several processes share; an event is written before the process goes on."""

    def __init__(self, pipe: Any, lock: Any) -> None:
        self._pipe = pipe
        self._lock = lock

    def say(self, event: tuple[object, ...]) -> None:
        """Send an event of this check to the process that waits for it; threads take turns."""
        with self._lock:
            self._pipe.send(event)


def send_steps_to(listener: Listener | None) -> None:
    """Send the steps that this process enters and leaves, and its results, to a listener from now on."""
    global _listener
    _listener = listener


def current_listener() -> Listener | None:
    """Return the listener of this process, for the processes that it starts."""
    return _listener


def _send_event(kind: str, about: object) -> None:
    if _listener is not None:
        _listener.say((kind, os.getpid(), about))


def report_established(result: R) -> R:
    """Report an established result, so that it is kept if the rest of the check times out."""
    if _listener is not None:
        _listener.say(("told", result))
    return result


def expect_equal(what: str, expected: object, got: object) -> None:
    """Raise a FormatError unless both are equal."""
    if expected != got:
        raise FormatError(f"{what}: expected {str(expected)[:300]}, got {str(got)[:300]}")


def list_files(root: Path) -> set[str]:
    """Return the relative paths of all files, links and empty directories (with a final ``/``) in a directory.

    Raises:
        FormatError: It exceeds a bound of ``limits``.
        OSError: A directory cannot be read, so its contents are not known.
    """
    found: set[str] = set()
    entries = size = 0
    for folder, names, files in os.walk(root, onerror=_fail, followlinks=False):
        here = Path(folder).relative_to(root).as_posix()
        below = "" if here == "." else f"{here}/"
        links = [name for name in names if os.path.islink(os.path.join(folder, name))]
        entries += len(files) + len(names)
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
        for what, most, got in (
            ("files and directories", MAX_ENTRIES, entries),
            ("bytes in all files", MAX_DIRECTORY_BYTES, size),
            ("directories inside one another", MAX_LEVELS, here.count("/")),
        ):
            if got > most:
                hint = "give one run, or one candidate, at a time"
                raise FormatError(f"expected at most {most} {what}, got {got}", where=str(root), hint=hint)
        found |= {f"{below}{name}" for name in (*files, *links)}
        if below and not names and not files:
            found.add(below)
    return found


def _fail(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def check_manifest(root: Path, file: str, listed: Mapping[str, str], apart: Sequence[str] = ()) -> None:
    """Check that a manifest lists exactly the existing files, with their digests.

    Args:
        root: The directory.
        file: The manifest's name.
        listed: Digests by file name, from the manifest.
        apart: Files, and directories that end in ``/``, with seals of their own.

    Raises:
        CheckFailed: Names the file.
    """
    own = tuple(name for name in apart if name.endswith("/"))
    with step(root / file, "manifest"):
        there = {name for name in list_files(root) - {file, *apart} if not name.startswith(own)}
        if extra := sorted(there - set(listed)):
            raise FormatError(f"expected only files of the manifest, got {extra[0]} as well")
    for name, code in listed.items():
        with step(root / name, "digest of the file"):
            expect_equal("sha256", code, sha256(read_file(resolve_inside(root, name))))
