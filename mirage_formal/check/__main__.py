"""``python -m mirage_formal.check PATH``: see mirage_formal.revalidate.command.

The one module of this package that leads out of it: the command also derives kernels again, which the checker cannot.
"""

from __future__ import annotations

from mirage_formal.guard import guarded
from mirage_formal.revalidate.command import main

__all__ = ["main"]

if __name__ == "__main__":
    guarded(main)
