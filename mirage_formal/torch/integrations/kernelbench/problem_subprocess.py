"""Subprocess for one problem: reads a job from standard input, and writes the outcome to the job's answer file.

    python -m mirage_formal.torch.integrations.kernelbench.problem_subprocess

A problem file is untrusted Python code, so it runs in a process of its own.
"""

from __future__ import annotations

import sys

import msgspec

from mirage_formal.torch.integrations.kernelbench.outcome import SolveRequest


def main() -> None:
    """Run the job that standard input describes."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=SolveRequest)
    from mirage_formal.torch.integrations.kernelbench.solve import solve_problem

    solve_problem(job)


if __name__ == "__main__":
    main()
