"""Solution of one problem in its subprocess: import, search, generation of the file, comparison."""

from __future__ import annotations

import linecache
import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec
import torch
from torch.utils import _pytree as pytree

from mirage_formal.api.request import superoptimize
from mirage_formal.codegen.cost import estimate
from mirage_formal.codegen.target import load_target
from mirage_formal.graph.storage_views import kernel_count
from mirage_formal.support.errors import MirageError
from mirage_formal.torch.capture import operator_name
from mirage_formal.torch.import_result import Imported, Region, UnsupportedNode
from mirage_formal.torch.integrations.kernelbench.module_file import model_new
from mirage_formal.torch.integrations.kernelbench.outcome import (
    ProblemOutcome,
    RegionOutcome,
    SolveRequest,
    Trials,
    UnsupportedOperator,
)
from mirage_formal.torch.integrations.kernelbench.sizes import halve_numbers
from mirage_formal.torch.integrations.kernelbench.trials import compare_modules, module_of
from mirage_formal.torch.integrations.operator_loading import operator_at
from mirage_formal.torch.modules.graph_rewriter import rewrite
from mirage_formal.torch.modules.trace import ModuleTrace, trace_module

_NAMES: Final = ("Model", "get_inputs", "get_init_inputs")
_LEAST_S: Final = 1.0
_T = TypeVar("_T")


def solve_problem(job: SolveRequest) -> ProblemOutcome:
    """Solve one problem; errors are part of the outcome."""
    begin = time.monotonic()
    found = ProblemOutcome(problem=job.problem, imported="error")
    warnings.simplefilter("ignore")
    try:
        for found in _steps(job):
            _write_outcome(job, found, begin)
    except Exception as error:  # a problem file is untrusted code and may raise anything
        first = (str(error).strip().splitlines() or [""])[0]
        found = msgspec.structs.replace(found, error=f"{type(error).__name__}: {first}"[:500])
    return _write_outcome(job, found, begin)


def _write_outcome(job: SolveRequest, found: ProblemOutcome, begin: float) -> ProblemOutcome:
    """Write the current outcome, which remains if the process is killed."""
    found = msgspec.structs.replace(found, seconds=round(time.monotonic() - begin, 2))
    Path(job.answer).write_bytes(msgspec.json.encode(found))
    return found


def _steps(job: SolveRequest) -> Iterator[ProblemOutcome]:
    source, sizes, names = _load_problem(job)
    elements = _elements(names)
    found = ProblemOutcome(problem=job.problem, imported="error", sizes=sizes, elements=elements)
    yield found
    small = elements <= job.elements
    with torch.device("cpu" if small else "meta"):
        module, inputs = module_of(names, "Model"), tuple(names["get_inputs"]())
    traced = trace_module(module, inputs, {})
    found = msgspec.structs.replace(found, **_import_fields(traced.imported, job.file))
    yield found
    regions, paths = _search_regions(traced.imported, job)
    found = msgspec.structs.replace(found, regions=tuple(regions))
    yield found
    if not paths:
        return
    text = _write_module(job, source, traced, found, paths)
    Path(job.written).parent.mkdir(parents=True, exist_ok=True)
    Path(job.written).write_text(text, encoding="utf-8")
    found = msgspec.structs.replace(found, written=job.written)
    yield found
    if small:
        trials = compare_modules(names, _executed(Path(job.written), text), job.trials)
    else:
        reason = f"{elements} elements are more than --elements {job.elements}"
        trials = Trials(answer="not run", reason=reason)
    yield msgspec.structs.replace(found, correct=trials)


def _load_problem(job: SolveRequest) -> tuple[str, dict[str, tuple[int, int]], dict[str, Any]]:
    """Return the text of a problem with reduced sizes, these sizes, and its global names."""
    path = Path(job.file)
    given = path.read_text(encoding="utf-8")
    source, sizes = halve_numbers(given, job.largest) if job.largest else (given, {})
    if sizes:
        try:
            names = _executed(path, source)
            with torch.no_grad():
                _use_on_meta_if_possible(names, lambda module, inputs: module(*inputs))
            return source, sizes, names
        except Exception:  # its numbers belong together in a way that is not known here; or it does not run at all
            pass
    return given, {}, _executed(path, given)


def _executed(path: Path, source: str) -> dict[str, Any]:
    """Execute a file and return its global names."""
    names: dict[str, Any] = {"__name__": f"problem_{path.stem}", "__file__": str(path)}
    linecache.cache[str(path)] = (len(source), None, source.splitlines(keepends=True), str(path))
    exec(compile(source, str(path), "exec"), names)
    return names


def _elements(names: Mapping[str, Any]) -> int:
    """Return the number of elements of all tensors of a problem, without allocating them where possible."""
    if missing := [name for name in _NAMES if name not in names]:
        raise MirageError(f"expected a file that defines {', '.join(_NAMES)}, got one without {', '.join(missing)}")

    def count(module: Any, inputs: Any) -> int:
        tensors = [*module.parameters(), *module.buffers(), *pytree.tree_leaves(inputs)]
        return sum(x.numel() for x in tensors if isinstance(x, torch.Tensor))

    return _use_on_meta_if_possible(names, count)


def _use_on_meta_if_possible(names: Mapping[str, Any], use: Callable[[Any, Any], _T]) -> _T:
    """Apply ``use`` to a problem's module and inputs on the meta device, or with memory where that raises."""
    try:
        with torch.device("meta"):
            return use(module_of(names, "Model"), names["get_inputs"]())
    except Exception:  # as distributions raise, and whatever else the file may
        return use(module_of(names, "Model"), names["get_inputs"]())


def _import_fields(imported: Imported, file: str) -> dict[str, Any]:
    whole = imported.graph is not None
    kind: Literal["whole", "part", "none"] = "whole" if whole else "part" if imported.regions else "none"
    left = tuple(dict.fromkeys(_left_operator(item, file) for item in imported.left if item.operator != "getitem"))
    nodes = {node.name: node for node in imported.module.graph.nodes}
    return {
        "imported": kind,
        "left": left,
        "operators": sum(len(_operator_nodes(item, nodes)) for item in imported.regions),
    }


def _operator_nodes(region: Region, nodes: Mapping[str, Any]) -> list[str]:
    """Return the operator nodes of a region, without ``getitem`` nodes."""
    return [name for name in region.nodes if nodes[name].target is not operator.getitem]


def _left_operator(item: UnsupportedNode, file: str) -> UnsupportedOperator:
    where = next((one for one in (item.where, item.through) if one is not None and str(one.path) == file), None)
    return UnsupportedOperator(item.operator, item.reason, "" if where is None else f"line {where.line}")


def _search_regions(imported: Imported, job: SolveRequest) -> tuple[list[RegionOutcome], dict[int, Path]]:
    """Return the outcome of each region, and the evidence paths of proved candidates by region number."""
    deadline = time.monotonic() + job.search_s
    target = load_target(job.target)
    nodes = {node.name: node for node in imported.module.graph.nodes}
    known: dict[str, RegionOutcome] = {}
    regions, paths = [], {}
    for number, region in enumerate(imported.regions):
        found = known.get(region.digest)
        if found is None:
            operators = tuple(
                operator_name(nodes[name]).removeprefix("aten.") for name in _operator_nodes(region, nodes)
            )
            unfused = estimate(region.program, target).us
            found = RegionOutcome(operators=operators, digest=region.digest, unfused_us=round(unfused, 3))
            different = len({item.digest for item in imported.regions[number:]} - set(known))
            found = _search_region(region, found, job, number, (deadline - time.monotonic()) / different)
            known[region.digest] = found
        regions.append(found)
        if found.evidence:
            paths[number] = Path(found.evidence)
    return regions, paths


def _search_region(region: Region, found: RegionOutcome, job: SolveRequest, number: int, share: float) -> RegionOutcome:
    if share < _LEAST_S:
        return msgspec.structs.replace(found, reason="no time was left for a search")
    place = Path(job.place) / f"region-{number}"
    try:
        best = superoptimize(
            region.graph,
            out=place,
            force=True,
            workers=1,
            time_limit=share,
            target=job.target,
            cache=job.cache,
            measure=0,
            name=f"region-{number}",
        )[0]
    except MirageError as error:
        return msgspec.structs.replace(found, reason=error.what[:300])
    return msgspec.structs.replace(
        found,
        candidate=best.digest,
        verdict=type(best.verdict).__name__.lower(),
        kernels=kernel_count(best.graph),
        estimate_us=round(best.cost, 3),
        evidence=str(best.directory.resolve()),
    )


def _write_module(
    job: SolveRequest, source: str, traced: ModuleTrace, found: ProblemOutcome, paths: Mapping[int, Path]
) -> str:
    operators = {number: operator_at(path) for number, path in paths.items()}
    graph = rewrite(traced.imported, {number: one.overload for number, one in operators.items()})
    said = [
        f"{job.problem}, computed by candidates of mirage_formal; written by `mirage-formal tools kernelbench`.",
        "",
    ]
    said += [
        f"Program {number}: {', '.join(region.operators)}: {region.verdict}, {region.kernels} kernels, est. "
        f"{region.estimate_us:.1f} us of {region.unfused_us:.1f}."
        for number, region in enumerate(found.regions)
        if region.candidate
    ]
    if found.sizes:
        changes = ", ".join(f"{name} {was} -> {now}" for name, (was, now) in found.sizes.items())
        said.append(f"Sizes are not the problem's: {changes}.")
    evidence = list(dict.fromkeys(paths.values()))
    beside = Path(job.written).with_suffix(".pt").resolve()
    beside.parent.mkdir(parents=True, exist_ok=True)
    return model_new(said, source, traced, graph, evidence, beside)


__all__ = ["solve_problem"]
