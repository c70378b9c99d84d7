"""Bounds on everything that is read: what exceeds one is refused before it costs time or memory.

docs/run-directory.md lists them. They are far above what a search writes; the memory of a reader stays below 1 GiB.
"""

from __future__ import annotations

from typing import Final

#: Bytes of one file.
MAX_FILE_BYTES: Final = 64 << 20
#: Bytes of the journal of a search.
MAX_JOURNAL_BYTES: Final = 256 << 20
#: Lines of a log, and bytes of one of them.
MAX_LINES: Final = 200_000
MAX_LINE_BYTES: Final = 64 << 20

# --- one JSON text ---------------------------------------------------------------------------------------------------

#: Brackets inside one another.
MAX_DEPTH: Final = 64
#: Brackets that open, commas, colons and quotation marks, those inside of texts counted as well.
MAX_MARKS: Final = 1 << 22
#: Characters of one number.
MAX_NUMBER: Final = 128

# --- one directory, and all that is below it -------------------------------------------------------------------------

#: Files and directories.
MAX_ENTRIES: Final = 100_000
#: Bytes of all files.
MAX_BYTES: Final = 512 << 20
#: Directories inside one another.
MAX_LEVELS: Final = 16
