"""Sandbox of the solver process: it drops the privileges that a solver does not need (Linux and POSIX, by ctypes).

The process cannot undo a step. ``confine`` returns the steps that the platform does not support, and never skips one
silently.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from typing import Any, Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_CAPABILITY_VERSION: Final = 0x20080522
#: System calls of Landlock, which have these numbers on every architecture that a wheel of z3 or cvc5 is made for.
_LANDLOCK_CREATE_RULESET: Final = 444
_LANDLOCK_RESTRICT_SELF: Final = 446
_LANDLOCK_VERSION: Final = 1
#: Rights over files by the version of Landlock that first knows them; all are dropped. 13 to 15 are: to move between
#: directories, to truncate, and to control devices.
_FILE_RIGHTS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
#: To bind and to connect TCP sockets, from version 4 on; abstract sockets and signals to others, from version 6 on.
_NET_RIGHTS: Final = 3
_SCOPES: Final = 3


def leave_with_parent(parent: int) -> list[str]:
    """Arrange that this process dies with the thread that started it; return the arrangements that failed."""
    failed = []
    if sys.platform == "linux" and _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)
    else:
        failed.append("to end with its parent while it computes")
    return failed


def confine(memory: int, cpu_s: int) -> list[str]:
    """Drop the rights to files, sockets, privileges, memory and time; called when every library is loaded.

    Sound: afterwards this process can open no file, since all file descriptors that it may have are in use; where the
    kernel has Landlock, it can also neither create, remove, rename nor truncate one by its name.

    Args:
        memory: Bytes of address space, including those already in use.
        cpu_s: Seconds of processor time for the rest of its life.

    Returns:
        Descriptions of the restrictions that this platform could not apply.
    """
    failed = []
    try:
        place = f"/tmp/mirage-formal-{os.getpid()}-{os.urandom(8).hex()}"
        os.mkdir(place, 0o700)
        os.chdir(place)
        os.rmdir(place)  # a directory that is gone takes no files, and nobody has to clear it away
    except OSError:
        os.chdir("/")
        failed.append("a directory of its own")
    if not (sys.platform == "linux" and _prctl(_PR_SET_NO_NEW_PRIVS, 1)):
        failed.append("the gaining of privileges")
    if not (sys.platform == "linux" and _no_capabilities()):
        failed.append("the capabilities of a superuser")
    if not _landlock():
        failed.append("starting programs, and renaming, removing and truncating files by name (no Landlock)")
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {
        "RLIMIT_AS": memory,
        "RLIMIT_CPU": int(used.ru_utime + used.ru_stime) + cpu_s,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
        "RLIMIT_NOFILE": _descriptors(),
    }
    for name, limit in limits.items():
        try:
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            least = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(which, (least, least))
        except (AttributeError, OSError, ValueError):
            failed.append(name)
    return failed


def _descriptors() -> int:
    """Return the lowest free file descriptor: as the limit, it prevents new ones."""
    free = os.dup(2)
    os.close(free)
    return free


def _prctl(option: int, value: int) -> bool:
    try:
        return bool(_libc().prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (AttributeError, OSError):
        return False


def _no_capabilities() -> bool:
    """Drop all capabilities; with them, a superuser's process could raise its limits again."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    try:
        return bool(_libc().capset(header, (ctypes.c_uint32 * 6)()) == 0)
    except (AttributeError, OSError):
        return False


def _landlock() -> bool:
    """Drop every right over files and sockets that the kernel's Landlock knows; return whether this worked."""
    if sys.platform != "linux":
        return False
    call = _libc().syscall
    version = call(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    if version < 3:  # before, files could be truncated
        return False
    rights = _FILE_RIGHTS[max(known for known in _FILE_RIGHTS if known <= version)]
    rules = [rights, *([_NET_RIGHTS] if version >= 4 else []), *([_SCOPES] if version >= 6 else [])]
    asked = (ctypes.c_uint64 * len(rules))(*rules)
    ruleset = call(_LANDLOCK_CREATE_RULESET, asked, ctypes.c_size_t(ctypes.sizeof(asked)), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        return bool(call(_LANDLOCK_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0)) == 0)
    finally:
        os.close(ruleset)


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
