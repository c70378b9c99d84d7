"""``python -m mirage_formal.check PATH``: see mirage_formal.derive.command.

The one module of this package that leads out of it: the command also derives kernels again, which the checker cannot.
"""

from __future__ import annotations

from mirage_formal.derive.command import main
from mirage_formal.guard import guarded

__all__ = ["main"]

if __name__ == "__main__":
    guarded(main)
