"""Exchange of an optimized module's plan between two calls, when a search in the background has found a better one."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import torch

from mirage_formal.support.options import MEASURED
from mirage_formal.torch.background.background_search import BackgroundSearch
from mirage_formal.torch.comparison.import_comparison import ImportComparison
from mirage_formal.torch.modules.custom_operators import TorchOperator
from mirage_formal.torch.modules.function_plan import CallFrame, TensorForm
from mirage_formal.torch.modules.module_report import ModuleReport, RegionReport
from mirage_formal.torch.modules.profitability import eager_compile, faster_regions
from mirage_formal.torch.modules.region_search import searches_to_continue, stored_operator


class PlanSwap:
    """Better plans of one module: it takes what the search in the background leaves in the store, between two calls.

    Sound: a candidate comes from the store, and the checker replays its proof in this process. Nothing that the child
    process says is believed but that it has ended.

    Args:
        frame: The module's calls at the import.
        comparison: Comparison of the regions with torch.
        asked: Options of ``superoptimize``.
        operators: Operators of the plan so far, by the numbers of regions.
        report: Report on all regions so far.
        guard: Whether calls check the conditions of regions.
    """

    def __init__(
        self,
        frame: CallFrame,
        comparison: ImportComparison,
        asked: Mapping[str, Any],
        operators: Mapping[int, TorchOperator],
        report: ModuleReport,
        guard: bool,
    ) -> None:
        self._frame, self._comparison, self._asked, self._guard = frame, comparison, dict(asked), guard
        self._operators, self._report = dict(operators), report
        self._remarks: list[str] = []
        self._lock = threading.Lock()
        self._module: Any = None
        searches = searches_to_continue(frame.traced.imported, report, asked)
        self._regions = [numbers for numbers, _ in searches]
        self.search = BackgroundSearch([program for _, program in searches], asked)

    def attach(self, module: Any) -> None:
        """Serve a module, whose deletion ends the search; only a weak reference to it is kept."""
        self._module = weakref.ref(module)
        self.search.end_with(module)

    def remarks(self) -> tuple[str, ...]:
        """Return remarks for a report: the state of the search, and what became of its results."""
        waits = ("what was found is installed before the next call",) if self.search.arrived else ()
        return (str(self.search.state), *self._remarks, *waits)

    def install(self) -> None:
        """Install what has arrived; return at once if another thread does, or the call is captured in a CUDA graph.

        The work is done in a thread of its own, for which this one waits: torch's modes (inference, no gradients,
        default device, automatic casts) belong to threads, and those of the call are not those of ``optimize``.
        """
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        if not self._lock.acquire(blocking=False):
            return
        device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        thread = threading.Thread(target=self._install_arrived, args=(device,), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there can be no further thread now: a later call tries again
            self._lock.release()
            return
        thread.join()

    def _install_arrived(self, device: int | None) -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            for number in self.search.take():
                where = f"region{'s' if len(self._regions[number]) > 1 else ''} "
                where += ", ".join(map(str, self._regions[number]))
                try:
                    self._remarks.append(f"{where}: {self._install_region(self._regions[number])}")
                except Exception as error:  # a call goes on with the plan that is there
                    self._remarks.append(f"{where}: what was found is not used: {type(error).__name__}: {error}")
        finally:
            self._lock.release()

    def _install_region(self, numbers: tuple[int, ...]) -> str:
        """Install the stored result for regions of one program, and return a remark on it."""
        imported = self._frame.traced.imported
        found = stored_operator(imported, numbers, self._asked, self._comparison, guard=self._guard)
        if found is None:
            return "the store has no result of its whole search"
        row, operator = found
        if operator is not None and self._is_timed():
            kept, timed = faster_regions(imported, {numbers[0]: operator}, ModuleReport((row,), (), ()), eager_compile)
            operator, (row,) = kept.get(numbers[0]), timed.regions
        module = self._module()
        earlier_plan = None if module is None else module._mirage_plan
        if earlier_plan is not None and earlier_plan.mode is not None:
            return "it is in the store: another call of optimize compares it with what torch.compile has made"
        (earlier,) = (one for one in self._report.regions if one.numbers == numbers)
        if numbers[0] in self._operators and (operator is None or _is_slower(row, earlier)):
            row, operator = dataclasses.replace(earlier, extent="", cut=False), self._operators[numbers[0]]
        operators = dict(self._operators)
        if operator is not None:
            operators.update(dict.fromkeys(numbers, operator))
        plan = self._frame.plan_with(operators, guard=self._guard) if operators else None
        rows = tuple(row if one.numbers == numbers else one for one in self._report.regions)
        self._operators, self._report = operators, dataclasses.replace(self._report, regions=rows)
        if module is not None:
            if plan is not None and earlier_plan is not None:
                plan.said = earlier_plan.said
            # A call reads its plan once, at its beginning.
            vars(module).update(_mirage_plan=plan, _mirage_report=self._report)
        better = row.candidate != earlier.candidate and operator is not None
        return f"candidate {row.candidate[:12]} was found in the background" if better else "nothing better was found"

    def _is_timed(self) -> bool:
        """Return whether operators are timed here, as ``optimize`` has done."""
        leaves = (leaf for leaf in self._frame.leaves if isinstance(leaf, TensorForm))
        on_gpu = any(leaf.device.type == "cuda" for leaf in leaves) and torch.cuda.is_available()
        return bool(self._asked.get("measure", MEASURED)) and on_gpu


def _is_slower(row: RegionReport, earlier: RegionReport) -> bool:
    """Return whether a new candidate was measured to be slower than an earlier one."""
    both = row.measured_us is not None and earlier.measured_us is not None
    return both and row.measured_us > earlier.measured_us  # type: ignore[operator]


__all__ = ["PlanSwap"]
