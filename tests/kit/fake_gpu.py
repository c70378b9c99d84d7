"""A GPU as a process of its own that answers every order, as that of ``mirage_formal.run.autotuning.timing`` does."""

from __future__ import annotations

import sys
from typing import ClassVar, Final

from mirage_formal.run.autotuning.timing import Child

#: A kernel takes longer the later its schedule comes, and a candidate is within its tolerance.
_SCRIPT: Final = """
import json, sys
print(json.dumps({"device": "Test", "arch": "sm_80", "driver": 1}), flush=True)
for line in sys.stdin:
    for job in json.loads(line)["jobs"]:
        us = 5.0 + max(job["variant"], 0)
        print(json.dumps({"us": us, "low": us, "answer": "within"}), flush=True)
"""


class FakeGpu(Child):
    """To be put in the place of ``Child``.

    Attributes:
        made: All of them, so that a test sees whether their processes have ended.
    """

    made: ClassVar[list[FakeGpu]] = []

    def __init__(self) -> None:
        super().__init__((sys.executable, "-I", "-S", "-c", _SCRIPT))
        self.made.append(self)


__all__ = ["FakeGpu"]
