"""The process for one problem: reads a job from standard input, and writes its answer to the file that the job names.

    python -m mirage_formal.torch.integrations.kernelbench.child

A problem file is anybody's Python: what it breaks is this process.
"""

from __future__ import annotations

import sys

import msgspec

from mirage_formal.torch.integrations.kernelbench.outcome import Job


def main() -> None:
    """Do the job on standard input."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    from mirage_formal.torch.integrations.kernelbench.solve import solve

    solve(job)


if __name__ == "__main__":
    main()
