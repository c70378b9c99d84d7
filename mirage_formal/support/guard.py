"""Wrapper of every command: orderly ends on signals, and one screen and an exit code for every failure.

Ctrl-C, SIGTERM and SIGHUP raise ``StopSignal``, a KeyboardInterrupt, on which a search writes its results so far. While
Python still imports, they end the process at once, because there are no results and an exception in an import may
surface as another one. A command imports this module first, so it needs little.

Exit codes: those of the command itself, and 2 for errors of the machine (a full disk, no permission, no memory), 70 for
a bug of this package, 130, 143 and 129 for Ctrl-C, SIGTERM and SIGHUP, 141 where the output is no longer read. With
MIRAGE_FORMAL_DEBUG=1 in the environment, tracebacks are shown as well.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import contextmanager, suppress

TYPE_CHECKING = False  # typing itself is not imported: until this module is there, a signal meets Python's own handlers
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType
    from typing import Any, NoReturn

    from mirage_formal.support.errors import MirageError

DEBUG = "MIRAGE_FORMAL_DEBUG"
REFUSED = 2
BUG = 70
UNREAD = 128 + 13
_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
#: Seconds after which a signal is tried again that came at a moment when it cannot be raised.
_AGAIN_S = 0.05
_LINES = 20
_WIDTH = 400
OPTIONS_HINT = "{} --help lists every option and its values"

_HINTS = {
    "make room there; what was finished is kept, and a search continues with --resume": ("ENOSPC", "EDQUOT", "EFBIG"),
    "choose another place, or change its permissions": ("EROFS", "EACCES", "EPERM"),
    "choose a shorter name": ("ENAMETOOLONG",),
    "choose another place: a file is where a directory has to be": ("EEXIST", "ENOTDIR"),
    "raise the limit of open files (ulimit -n), or use fewer --workers": ("EMFILE", "ENFILE"),
    "use fewer --workers; --worker-memory bounds what each may use": ("ENOMEM", "EAGAIN"),
}


class StopSignal(KeyboardInterrupt):
    """Interrupt: the command was told to stop by a signal, whose number is ``number``."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _State:
    """State of this process; a process runs one command."""

    command = False  #: The process is one of our commands, and nobody else's.
    entered = False  #: Whoever runs now may meet a Stopped.
    orderly = 0  #: Something is kept if it is met in order.
    received = 0  #: The last signal.
    hint = ""  #: What to do after having been stopped.


_STATE = _State()


def at_start() -> None:
    """Install signal handlers if this process is one of our commands; anywhere else do nothing."""
    if _is_command():
        _STATE.command = True
        _install()


def run_main(main: Callable[[], int | None]) -> NoReturn:
    """Run a command's ``main`` and exit with its code, or with that of its error; no traceback is shown."""
    earlier = {} if _STATE.command else {number: signal.getsignal(number) for number in _SIGNALS}
    hook, show = sys.unraisablehook, _plain_warnings()
    _STATE.received, _STATE.hint, _STATE.orderly = 0, "", 0
    _install()
    sys.unraisablehook = _unraisable(hook)
    with suppress(AttributeError, ValueError, OSError):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names of files may be any bytes
    try:
        _STATE.entered = True
        result = main()
        _STATE.entered = False
        code = 0 if result is None else int(result)
    except BaseException as error:
        _STATE.entered = False
        code = _print_error(error)
    finally:
        _STATE.entered = False
    if code == 128 + signal.SIGINT and _STATE.received:
        code = 128 + _STATE.received
    code = _flush_output(code)
    sys.unraisablehook = hook
    show()
    for number, handler in earlier.items():
        with suppress(ValueError):
            signal.signal(number, handler)
    sys.exit(code)


def print_mistake(error: MirageError) -> None:
    """Print a user's mistake to standard error, on one screen."""
    from mirage_formal.support.terminal import escape_line

    hint = "" if error.hint else f"\n  hint: {OPTIONS_HINT.format('mirage-formal COMMAND')}"
    texts = f"error: {error}{hint}".splitlines()
    if len(texts) > _LINES:
        texts = [*texts[: _LINES - 2], f"  ... {len(texts) - _LINES + 1} lines more", texts[-1]]
    print("\n".join(escape_line(text) for text in texts), file=sys.stderr)


def end_quickly(main: Callable[[], NoReturn]) -> NoReturn:
    """Run the main program of this process, which exits, without taking all modules and values apart afterwards.

    Functions that were registered for the exit are called, and the output is flushed.
    """
    import atexit

    try:
        main()
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        atexit._run_exitfuncs()
        os._exit(_flush_output(ended.code))


def stopped_by() -> int:
    """Return the exit code of the signal that stopped this command; 0 without one."""
    return _STATE.received and 128 + _STATE.received


@contextmanager
def keep_results_on_stop(hint: str = "") -> Iterator[None]:
    """Mark a block that keeps its results when it is stopped: a signal in it is always raised, and never lost.

    Args:
        hint: Text that says how to continue.
    """
    _STATE.orderly += 1
    before, _STATE.hint = _STATE.hint, hint or _STATE.hint
    try:
        yield
        _STATE.hint = before
    finally:
        _STATE.orderly -= 1


@contextmanager
def block_interrupts() -> Iterator[None]:
    """Block Ctrl-C for processes that are started inside; the command receives it and ends them."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would lift the block when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# --- signals ---------------------------------------------------------------------------------------------------------


def _is_command() -> bool:
    given = sys.orig_argv
    if sys.argv[:1] == ["-m"]:  # Python is looking for the module, and imports the packages that it is in
        name = given[len(given) - len(sys.argv)].removeprefix("-m")
        return name.split(".")[0] == "mirage_formal"
    return bool(sys.argv) and os.path.basename(sys.argv[0]) == "mirage-formal" and sys.argv[0] in given


def _install() -> None:
    """Install handlers for the signals that are not ignored; background jobs and nohup ignore some."""
    for number in _SIGNALS:
        usual = (signal.default_int_handler, signal.SIG_DFL)
        with suppress(ValueError):  # not the main thread
            if signal.getsignal(number) in usual:
                signal.signal(number, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    _STATE.received = number
    if number == getattr(signal, "SIGHUP", None):
        _leave_terminal()
    importing = _importing(frame)
    if _STATE.entered and not importing:
        if not _STATE.orderly:
            _end_children()
        raise StopSignal(number)
    if _STATE.entered and _STATE.orderly:
        _try_again(number)
    else:
        _end_process(128 + number)


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _try_again(number: int) -> None:
    import threading

    timer = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
    timer.daemon = True
    timer.start()


def _end_process(code: int) -> NoReturn:
    """End this process at once, because there are no results to keep."""
    _end_children()
    cursor = "\x1b[?25h" if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{cursor}interrupted\n".encode())
    os._exit(code)


def _end_children() -> None:
    """Kill the worker processes that this one has started."""
    multiprocessing = sys.modules.get("multiprocessing")
    with suppress(Exception):
        for child in multiprocessing.active_children() if multiprocessing is not None else ():
            child.kill()


def _leave_terminal() -> None:
    """Redirect output to nowhere after the terminal is gone, so that further writes are no error."""
    for number in (1, 2):
        with suppress(OSError):
            if os.isatty(number):
                _to_nowhere(number)


def _to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


def _unraisable(hook: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Return a hook that raises a signal again soon, if it was raised where exceptions are ignored."""

    def handle(what: Any) -> None:
        if issubclass(what.exc_type, KeyboardInterrupt):
            _try_again(getattr(what.exc_value, "number", signal.SIGINT))
        else:
            hook(what)

    return handle


# --- what went wrong -------------------------------------------------------------------------------------------------


def _print_error(error: BaseException) -> int:
    """Print the error that ended a command; return the exit code."""
    chain = list(_exception_chain(error))
    if any(isinstance(one, BrokenPipeError) for one in chain):
        return UNREAD
    if any(isinstance(one, KeyboardInterrupt) for one in chain) or (
        _STATE.received and not isinstance(error, SystemExit)
    ):
        _debug(error)
        _say(["interrupted" + (f"; {_STATE.hint}" if _STATE.hint else "")])
        return 128 + (_STATE.received or signal.SIGINT)
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):
            _say([error.code])
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    _debug(error)
    lines, code = _described(error)
    _say(lines)
    return code


def _described(error: BaseException) -> tuple[list[str], int]:
    from mirage_formal.support.errors import MirageError

    match error:
        case MirageError():
            return f"error: {error}".splitlines(), REFUSED
        case OSError():
            unnamed = "the system" if error.errno in (errno.EAGAIN, errno.ENOMEM) else "the output"
            where = unnamed if error.filename is None else _printable_name(error.filename)
            got = error.strerror or _first(error)
            names = errno.errorcode.get(error.errno or 0, "")
            hint = next((hint for hint, those in _HINTS.items() if names in those), "check the path")
            return [f"error: {where}: expected to read or write it, got: {got}", f"  hint: {hint}"], REFUSED
        case MemoryError():
            hint = "use fewer --workers, a smaller program or a machine with more memory"
            return ["error: expected enough memory, got none", f"  hint: {hint}"], REFUSED
        case UnicodeEncodeError():
            got = _printable_name(error.object[max(0, error.start - 40) : error.end + 40])
            hint = "rename the file or the directory"
            return [f"error: expected a name in UTF-8, got '{got}'", f"  hint: {hint}"], REFUSED
    at = ""
    trace = error.__traceback__
    while trace is not None:
        at = f" at {_printable_name(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}"
        trace = trace.tb_next
    what = f"error: this is a bug of mirage_formal: {type(error).__name__}: {_first(error)}{at}"
    return [what, f"  hint: {DEBUG}=1 in the environment shows the traceback; report it with what you have run"], BUG


def _first(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "")


def _printable_name(name: object) -> str:
    text = os.fsdecode(name) if isinstance(name, bytes) else str(name)
    return "".join(c if c.isprintable() else c.encode("utf-8", "backslashreplace").decode() for c in text)[:200]


def _exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised for; typer wraps some in its own."""
    seen: set[int] = set()
    left: BaseException | None = error
    while left is not None and id(left) not in seen:
        seen.add(id(left))
        yield left
        left = left.__cause__ or left.__context__


def _debug(error: BaseException) -> None:
    if os.environ.get(DEBUG, "0") not in ("", "0"):
        import traceback

        with suppress(OSError, ValueError):
            traceback.print_exception(error, file=sys.stderr)


def _say(lines: list[str]) -> None:
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 2], f"  ... {len(lines) - _LINES + 1} lines more", lines[-1]]
    with suppress(OSError, ValueError):
        print("\n".join(line[:_WIDTH] for line in lines), file=sys.stderr, flush=True)


def _plain_warnings() -> Callable[[], None]:
    """Show warnings as one line without a place in our code; return the function that undoes it."""
    import warnings

    before = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        _say(f"warning: {message}".splitlines())

    warnings.showwarning = show

    def undo() -> None:
        warnings.showwarning = before

    return undo


def _flush_output(code: int) -> int:
    """Flush the output now, because Python can only print a complaint if a flush fails at exit."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except BrokenPipeError:
            _to_nowhere(number)
            code = UNREAD
        except ValueError:  # closed
            continue
        except OSError as error:
            _to_nowhere(number)
            _say([f"error: standard output: expected to write to it, got: {error.strerror}"])
            code = code or REFUSED
    return code


__all__ = [
    "DEBUG",
    "OPTIONS_HINT",
    "StopSignal",
    "at_start",
    "block_interrupts",
    "end_quickly",
    "keep_results_on_stop",
    "print_mistake",
    "run_main",
    "stopped_by",
]
