"""Reader of a directory of kernels: launches, sources, compiler and GPU records, obligations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from mirage_formal.codegen.cuda_printer import emit_cuda
from mirage_formal.codegen.generate import generate, requested_options
from mirage_formal.codegen.generated_launches import GeneratedLaunch
from mirage_formal.codegen.joined_launches.joined_printer import emit_launched
from mirage_formal.codegen.online_softmax.stabilize import NoStableForm, stabilize
from mirage_formal.codegen.program.lines import LineRange as Piece
from mirage_formal.codegen.source_map import kernel_lines
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.codegen.triton.file import triton_file
from mirage_formal.codegen.triton.launch_options import LaunchOptions
from mirage_formal.device.disassembly import assembly_texts
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.records import (
    LAUNCH_FILE,
    MANIFEST_FILE,
    MEASURE_FILE,
    NUMERICS_FILE,
    OBLIGATIONS_FILE,
    PLAN_FILE,
    REALIZES_FILE,
    KernelLaunch,
    KernelManifestRecord,
    KernelPlanRecord,
    Launch,
    LaunchRecord,
    MeasureRecord,
    NumericsRecord,
    ObligationRecord,
    PlanRecord,
    RealizationRecord,
    RealizesRecord,
    TargetRecord,
    TritonLogRecord,
    TritonRecord,
    decode,
    launched_kernels,
    open_sealed,
    sha256,
)
from mirage_formal.records.storage import read_lines
from mirage_formal.report.drawing.levels import all_nodes, levels
from mirage_formal.report.model import (
    Code,
    MeasuredFigures,
    ReportedAssembly,
    ReportedClaim,
    ReportedKernel,
    ReportedObligation,
    SourceLines,
)
from mirage_formal.report.reading.evidence_reader import EvidenceReader
from mirage_formal.support.errors import MirageError

#: Most obligations that are listed; all are counted.
MOST: Final = 20_000
#: Verdict on a claim that no record has, and its reason in directories of earlier versions.
_UNDECIDED: Final = "not decided"
_BEFORE: Final = "there is no realizes.json: these kernels were built before the claim was decided; check decides it"
#: Threads of a warp, and allocation unit of registers for one.
_WARP: Final = 32
_UNIT: Final = 256


@dataclass(frozen=True, slots=True)
class KernelDirectory:
    """Content of a directory of kernels.

    Attributes:
        code: Kernels and their texts.
        graph: The µGraph that they compute.
        measured: GPU records; None where there are none.
        target: Target that they are planned for.
    """

    code: Code
    graph: KernelGraph | None
    measured: MeasuredFigures | None
    target: TargetRecord


def read_kernels(
    source: EvidenceReader, digest: str, *, lines: bool = True, assembly: bool = False
) -> KernelDirectory | None:
    """Read the kernels of a candidate; return None where nothing can be read. Errors become faults of ``source``.

    Args:
        source: Their directory.
        digest: Digest of the candidate.
        lines: Whether lines of code are linked to operators.
        assembly: Whether these lines are compiled to PTX and SASS.
    """
    with source.reading(MANIFEST_FILE):
        manifest = open_sealed(source.data(MANIFEST_FILE), KernelManifestRecord, MANIFEST_FILE)
        if manifest.candidate != digest:
            source.fault(MANIFEST_FILE, f"candidate: expected {digest}, got {manifest.candidate}")
        for name, code in manifest.files.items():
            with source.reading(name):
                if sha256(source.data(name)) != code:
                    source.fault(name, "its digest is not the one in the manifest: the file was changed")
        launches = decode(source.data(LAUNCH_FILE), LaunchRecord, LAUNCH_FILE)
        plans = source.value(PLAN_FILE, lambda data: decode(data, PlanRecord, PLAN_FILE))
        planned = {one.kernel: one for one in plans.kernels} if plans else {}
        texts = _texts(source, launches)
        graph = source.graph(LAUNCH_FILE, launches.graph)
        made = {} if not lines or graph is None or plans is None else lines_of(graph, manifest.target, plans, texts)
        kernels = tuple(
            replace(one, lines=made.get((one.source, one.operator), ()))
            for one in (_kernel(one, planned, texts, manifest.target) for one in _parts(launches))
        )
        own = manifest.graph == manifest.candidate
        form = None if own else graph
        compiled = tuple(_assembly(texts, made, manifest.target.arch)) if assembly else ()
        held = _obligations(source)
        claims = _claims(source, manifest, launches)
        code_ = Code(source.name.rstrip("/"), own, kernels, tuple(texts.items()), held, form, compiled, claims)
        measured = _measured(source, sha256(source.data(MANIFEST_FILE)))
        return KernelDirectory(code_, graph, measured, manifest.target)
    return None


def _texts(source: EvidenceReader, launches: LaunchRecord) -> dict[str, str]:
    found: dict[str, str] = {}
    for one in launches.launches:
        if isinstance(one, KernelLaunch) and one.source not in found:
            with source.reading(one.source):
                found[one.source] = source.data(one.source).decode("utf-8", "replace")
    return found


def _parts(launches: LaunchRecord) -> list[Launch]:
    """Return the launches, the kernels of joined ones apart."""
    return [part for one in launches.launches for part in (one.kernels if isinstance(one, KernelLaunch) else (one,))]


def _kernel(
    one: object, planned: dict[str, KernelPlanRecord], texts: dict[str, str], target: TargetRecord
) -> ReportedKernel:
    if not isinstance(one, KernelLaunch):
        operator = getattr(one, "operator", -1)
        return ReportedKernel("cuBLAS", operator, (1, 1, 1), 0, 0)
    plan = planned.get(one.name)
    made = sorted(plan.compiled.items()) if plan else []
    first, last = _lines(texts.get(one.source, ""), one.name)
    return ReportedKernel(
        one.name,
        one.operator,
        one.grid,
        one.threads,
        one.shared_bytes,
        tuple((arch, code.registers) for arch, code in made),
        tuple((arch, code.stack_bytes) for arch, code in made),
        tuple((arch, _occupancy(one, code.registers, target)) for arch, code in made if arch == target.arch),
        one.source,
        first,
        last,
    )


def _occupancy(one: KernelLaunch, registers: int, target: TargetRecord) -> float:
    """Return the occupancy: the share of a multiprocessor's threads that resident blocks use.

    Registers, shared memory and threads limit the number of resident blocks.
    """
    limits = target.limits
    warps = -(-one.threads // _WARP)
    held = -(-registers * _WARP // _UNIT) * _UNIT * warps
    shared = one.shared_bytes + limits.shared_reserved_per_block
    blocks = min(
        limits.blocks_per_sm,
        limits.threads_per_sm // one.threads,
        limits.registers_per_sm // max(1, held),
        limits.shared_bytes_per_sm // max(1, shared),
    )
    return blocks * one.threads / limits.threads_per_sm


def _lines(text: str, name: str) -> tuple[int, int]:
    """Return first and last line of a kernel's definition; 0, 0 where it is not found."""
    head = rf'^(extern "C" __global__ .*\b{re.escape(name)}|MF_DEVICE void {re.escape(name)}_block)\($'
    found = re.search(head, text, re.MULTILINE)
    if found is None:
        return 0, 0
    end = text.find("\n}", found.end())
    return text.count("\n", 0, found.start()) + 1, text.count("\n", 0, max(end, found.end())) + 2


def _obligations(source: EvidenceReader) -> tuple[ReportedObligation, ...]:
    out: list[ReportedObligation] = []
    with source.reading(OBLIGATIONS_FILE):
        for number, line in read_lines(source.root / OBLIGATIONS_FILE):
            one = decode(line, ObligationRecord, f"line {number}")
            said = ", ".join(f"{name} {answer.answer}" for name, answer in sorted(one.solvers.items()))
            if len(out) < MOST:
                out.append(ReportedObligation(one.kernel, one.kind, one.subject, one.claim, one.means, said))
    return tuple(out)


def _claims(
    source: EvidenceReader, manifest: KernelManifestRecord, launches: LaunchRecord
) -> tuple[ReportedClaim, ...]:
    """Return the claim that each generated kernel computes its operator, as it is recorded.

    A directory of before has no record of it: then it is not decided.
    """
    names = [one.name for one in launched_kernels(launches.launches)]
    if REALIZES_FILE not in manifest.files:
        return tuple(ReportedClaim(name, _UNDECIDED, _BEFORE) for name in names)
    with source.reading(REALIZES_FILE):
        record = decode(source.data(REALIZES_FILE), RealizesRecord, REALIZES_FILE)
        if names != (found := [one.kernel for one in record.kernels]):
            source.fault(REALIZES_FILE, f"kernels: expected {', '.join(names)}, got {', '.join(found)}"[:300])
            return tuple(ReportedClaim(name, _UNDECIDED, "the record is of other kernels") for name in names)
        return tuple(map(_claim, record.kernels))
    return tuple(ReportedClaim(name, _UNDECIDED, "the record cannot be read") for name in names)


def _claim(one: RealizationRecord) -> ReportedClaim:
    verdict = {"realizes": "realizes", "deviates": "tested", "unknown": _UNDECIDED}[one.verdict]
    return ReportedClaim(
        one.kernel, verdict, one.reason, one.classes, one.elements, one.points, one.bits, one.roundings
    )


def _measured(source: EvidenceReader, manifest: str) -> MeasuredFigures | None:
    time = numerics = None
    if source.there(MEASURE_FILE):
        time = source.value(MEASURE_FILE, lambda data: open_sealed(data, MeasureRecord, MEASURE_FILE))
    if source.there(NUMERICS_FILE):
        numerics = source.value(NUMERICS_FILE, lambda data: open_sealed(data, NumericsRecord, NUMERICS_FILE))
    for file, one in ((MEASURE_FILE, time), (NUMERICS_FILE, numerics)):
        if one is not None and one.kernels != manifest:
            source.fault(file, "it belongs to other kernels than those that lie beside it")
    if time is None and numerics is None:
        return None
    ratios = [out.max_ratio for scale in numerics.scales for out in scale.outputs] if numerics else []
    known = [one for one in ratios if one is not None]
    return MeasuredFigures(
        device=time.device if time else numerics.device if numerics else "",
        us=time.us if time else None,
        low=time.low if time else None,
        high=time.high if time else None,
        calls=time.calls if time else 0,
        replays=time.replays if time else 0,
        numerics=numerics.answer if numerics else "",
        ratio=max(known) if known and len(known) == len(ratios) else None,
        triton="" if time is None or time.triton is None else _triton(time.triton),
    )


def _triton(found: TritonRecord) -> str:
    """Return a phrase on a candidate's Triton files: times, the choice, and how many were tried."""
    timed = sorted(one.us for one in found.tried if one.us is not None and not one.failed)
    count = f"{len(found.tried)} file{'s' if len(found.tried) != 1 else ''} tried"
    chosen = next((one for one in found.tried if one.sha256 == found.chosen), None)
    if chosen is not None and found.us is not None and found.cuda_us is not None:
        options = LaunchOptions(chosen.warps, chosen.stages)
        times = f"{found.us:.2f} µs, the run's fastest CUDA kernels {found.cuda_us:.2f} µs in turns with it"
        won = "taken, tested and not proved safe" if found.backend == "triton" else "not taken"
        held = "" if found.log is None else f"; {_accesses(found.log)}"
        return f"{times}; {options}; {won}{held}; {count}"
    if timed:
        return f"{timed[0]:.2f} µs, not taken; {count}"
    return "; ".join(one for one in (found.reason, count if found.tried else "") if one)


def _accesses(log: TritonLogRecord) -> str:
    """Return a phrase with the number of accesses of a Triton file that are in bounds."""
    held = sum(one.finding == "held" for one in log.accesses)
    return f"{held} of {len(log.accesses)} accesses in bounds, no claim on races"


# --- lines of code ---------------------------------------------------------------------------------------------------


#: Most characters of a candidate's sources, and most operators of its µGraph, for which kernels are regenerated.
_TEXT: Final = 1 << 20
_OPERATORS: Final = 200


def lines_of(
    graph: KernelGraph, target: TargetRecord, plans: PlanRecord, texts: Mapping[str, str]
) -> dict[tuple[str, int], tuple[SourceLines, ...]]:
    """Return lines by file and operator; unknown ones are left out.

    Args:
        graph: The µGraph that the kernels compute.
        target: Target that they are planned for.
        plans: Their plans.
        texts: The recorded sources.
    """
    if sum(map(len, texts.values())) > _TEXT or len(graph.ops) > _OPERATORS:
        return {}
    try:
        return dict(_lines_of(graph, target, plans, texts))
    except Exception:  # whatever forged plans and targets lead to: then it is not known
        return {}


def _lines_of(
    graph: KernelGraph, target: TargetRecord, plans: PlanRecord, texts: Mapping[str, str]
) -> list[tuple[tuple[str, int], tuple[SourceLines, ...]]]:
    made = generate(graph, msgspec.convert(msgspec.to_builtins(target), Target), *requested_options(plans.kernels))
    types = kernel_types(graph)
    found = []
    for launch in made.launches:
        if not isinstance(launch, GeneratedLaunch) or emit_launched(launch.program) != texts.get(launch.source):
            continue
        for one in (launch.kernel, *(() if launch.then is None else (launch.then,))):
            op = graph.ops[one.operator] if one.operator >= 0 else None
            if one.plan is None or not isinstance(op, GraphDefined):
                continue
            here = f"op{one.operator}"
            pieces = kernel_lines(one.program, one.plan, op, [types[n] for n in op.operands])
            inside = [replace(piece, nodes=tuple(f"{here}.{node}" for node in piece.nodes)) for piece in pieces]
            if launch.then is not None:
                inside = _lines_in_launch(inside, emit_cuda(one.program), texts[launch.source])
            found.append(((launch.source, one.operator), _label_lines(inside, graph)))
    return found


def _lines_in_launch(pieces: Sequence[Piece], text: str, whole: str) -> list[Piece]:
    """Return the lines of a kernel in the text of a joined launch, which has the same statements in a function."""
    first = min((piece.first for piece in pieces), default=1)
    body = "\n".join(text.splitlines()[first - 1 :])
    at = whole.find(f"\n{body}\n")
    more = whole.count("\n", 0, at + 1) + 1 - first
    return [] if at < 0 else [replace(piece, first=piece.first + more, last=piece.last + more) for piece in pieces]


def _assembly(
    texts: Mapping[str, str], made: Mapping[tuple[str, int], tuple[SourceLines, ...]], arch: str
) -> Iterator[ReportedAssembly]:
    """Yield the PTX and the SASS of each source whose lines are known, so that no other text is compiled."""
    for source in dict.fromkeys(source for source, _ in made):
        pieces = [piece for (place, _), own in made.items() if place == source for piece in own]
        owners = {line: piece for piece in pieces for line in range(piece.first, piece.last + 1)}
        for one in assembly_texts(texts[source], arch):
            found: list[SourceLines] = []
            for number, line in enumerate(one.sources, 1):
                piece = owners.get(line)
                if piece is None:
                    continue
                if found and (found[-1].last, found[-1].parts, found[-1].does) == (number - 1, piece.parts, piece.does):
                    found[-1] = replace(found[-1], last=number)
                else:
                    found.append(replace(piece, first=number, last=number))
            yield ReportedAssembly(source, one.language, arch, one.text, one.sources, tuple(found), one.missing)


def triton_lines(
    graph: KernelGraph, known: KernelGraph | None, program: KernelGraph, target: str, text: str
) -> tuple[tuple[SourceLines, ...], KernelGraph | None]:
    """Return the lines of a Triton file, and the form of the candidate that it computes; no lines if unknown.

    Args:
        graph: The candidate.
        known: The form of it that its CUDA kernels compute, if they compute another one.
        program: Its program.
        target: Name of the file's target.
        text: The file.
    """
    if len(text) > _TEXT or len(graph.ops) > _OPERATORS:
        return (), None
    try:
        figures = load_target(target)
        title = text.split("\n", 1)[0].removeprefix('"""')
        for form in _forms(graph, known):
            with suppress(MirageError):  # it has no Triton file
                made = triton_file(form, program, figures, title)
                if made.text == text:
                    return _label_lines(made.lines, form), None if form == graph else form
    except Exception:  # whatever a forged graph leads to: then it is not known
        return (), None
    return (), None


def _forms(graph: KernelGraph, known: KernelGraph | None) -> Iterator[KernelGraph]:
    """Yield the graphs that a file may compute: the candidate, and its forms without overflow."""
    yield graph
    if known is not None:
        yield known
    found = stabilize(graph)
    if not isinstance(found, NoStableForm) and found not in (graph, known):
        yield found


def _label_lines(lines: Sequence[Piece], graph: KernelGraph) -> tuple[SourceLines, ...]:
    """Return the lines with the labels of their nodes."""
    names = {node.id: node.label for node in all_nodes(levels(graph))}
    return tuple(
        SourceLines(item.first, item.last, tuple((node, names[node]) for node in item.nodes), item.does)
        for item in lines
    )
