"""Verification of candidates. The package can be called: ``mirage_formal.verify(program, graph)`` gives a verdict.

A function of that name in ``mirage_formal`` would hide this package from ``import mirage_formal.run.verify.certify as c``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from mirage_formal.graph.verdict import Verdict
from mirage_formal.ir.verification import verify


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Verdict:
        return verify(*arguments, **options)


_Callable.__call__.__doc__ = verify.__doc__
sys.modules[__name__].__class__ = _Callable
