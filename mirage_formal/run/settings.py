"""Settings of a run, and the values derived from them: search space, target, run identity."""

from __future__ import annotations

import dataclasses
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from mirage_formal.codegen.target import Target, load_target
from mirage_formal.graph.canonical import digest
from mirage_formal.graph.graph import GraphDefined, KernelGraph
from mirage_formal.graph.ops import SPECS, Family, OpKind
from mirage_formal.graph.verifier import kernel_types
from mirage_formal.logic.added_axioms import read_choice
from mirage_formal.logic.consistency import check_consistency
from mirage_formal.records import PACKAGES, HostRecord, Identity, sha256
from mirage_formal.run.verify.policy import Policy
from mirage_formal.search.engine_interface import SearchOptions
from mirage_formal.search.preprocess import PreprocessedProgram, preprocess
from mirage_formal.search.space import SearchSpace, load_space
from mirage_formal.semantics.function_table import ACTIVATIONS
from mirage_formal.support.errors import ProgramError, SpaceError
from mirage_formal.support.options import ENGINES as ENGINES
from mirage_formal.support.options import Overrides, SearchMethod, check_options
from mirage_formal.support.options import Settings as Settings
from mirage_formal.support.resources import data_dir, processor_count

#: States after which a unit of a search ends if the user named no space: more than any example needs. A program whose
#: single search would take longer is covered by subgraphs.
MOST_STATES: Final = 500_000
_SUMS_OF_PRODUCTS: Final = frozenset({OpKind.MATMUL, OpKind.ADD, OpKind.SCALE})
_NORMS: Final = frozenset({OpKind.RMS_NORM, OpKind.LAYER_NORM, OpKind.SQRT, OpKind.SQUARE, OpKind.MEAN})


#: Share of a time limit for verification and files, their least seconds, and their largest share, for short limits.
_REST, _LEAST_S, _MOST_REST = 0.25, 3.0, 0.5
#: Shares of these seconds that are left at the end of proofs, and at the end of all verification.
_PROOFS, _VERIFIED = 0.32, 0.12
#: Time limit for resuming a search when no time is left: its earlier results are verified.
NO_TIME_S: Final = 1e-6


def remaining_time(limit: float | None, begin: float) -> float | None:
    """Return the seconds that are left of a time limit which counts from ``begin``, a value of time.monotonic()."""
    return None if limit is None else max(limit - (time.monotonic() - begin), NO_TIME_S)


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Time limits of the steps of a run.

    Attributes:
        unit_s: Seconds for one task.
        proof_s: Seconds for the proof of one candidate.
        search: Value of time.monotonic() at which the search stops.
        proofs: Value of time.monotonic() at which certificates and proofs stop; candidates without one are not
            reported.
        verified: Value of time.monotonic() at which the solvers' answers to proofs and the rounding estimates stop.
    """

    unit_s: float
    proof_s: float
    search: float = float("inf")
    proofs: float = float("inf")
    verified: float = float("inf")

    @classmethod
    def of(cls, settings: Settings, begin: float) -> TimeLimits:
        """Return the limits of a run that began at ``begin``, in seconds of time.monotonic()."""
        limits = cls(settings.unit_limit, settings.proof_limit)
        limit = settings.time_limit
        if limit is None:
            return limits
        rest = min(max(_REST * limit, _LEAST_S), _MOST_REST * limit) if limit > NO_TIME_S else _LEAST_S
        search = begin + max(limit - rest, 0.0)
        proofs, verified = (search + (1 - left) * rest for left in (_PROOFS, _VERIFIED))
        return dataclasses.replace(limits, search=search, proofs=proofs, verified=verified)


@dataclass(frozen=True, slots=True)
class Job:
    """A program with all settings that determine the result of its search; an immutable value.

    ``graphs`` are the candidates where nothing is searched.
    """

    program: KernelGraph
    config: str
    space: SearchSpace
    target: Target
    engine: str
    options: SearchOptions
    accept: Policy
    graphs: tuple[KernelGraph, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchJob(Job):
    """A job as workers get it.

    ``sought`` is the program after preprocessing, which the search looks for, or the program itself where nothing is
    searched; candidates are proved equal to ``program``.
    """

    sought: PreprocessedProgram = field(kw_only=True)


def preprocess_job(job: Job) -> SearchJob:
    """Return a job with its preprocessed program, for which the prover is asked."""
    given: Any = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
    plain = PreprocessedProgram(job.program, job.program.inputs, None) if job.graphs else preprocess(job.program)
    return SearchJob(**given, sought=plain)


def make_job(program: KernelGraph, settings: Settings) -> Job:
    """Load the space and the target, check the settings, and return the job; nothing is proved for it.

    Raises:
        FormatError: A file of axioms is malformed, or its axioms are inconsistent.
        ProgramError: The program has no output, or is not made of predefined operators.
        SpaceError: An unknown preset, a bad list, or a grid that divides nothing.
        FormatError: The file of candidates cannot be read.
        GraphError: One of its graphs has other inputs or outputs than the program.
        TargetError: An unknown target.
    """
    if not program.outputs:
        hint = "call mark_output on the tensors that the program computes"
        raise ProgramError("expected at least one marked output, got none", where="program", hint=hint)
    if any(isinstance(op, GraphDefined) for op in program.ops):
        hint = "describe the program with predefined operators; the search finds the graph-defined ones"
        raise ProgramError("expected predefined operators only, got a customized one", where="program", hint=hint)
    check_limits(settings)
    engine, graphs = settings.engine, tuple[KernelGraph, ...]()
    if settings.checkpoint is not None:
        from mirage_formal.run.checkpoint_engine import read_candidates  # few runs need this import

        path = Path(settings.checkpoint)
        engine, graphs = read_candidates(path, display_path(path), program)
    config = settings.config or choose_config(program)
    overrides: Any = {name: getattr(settings, name) for name in Overrides.__annotations__}
    if settings.max_states is None and not settings.narrowed:
        overrides["max_states"] = MOST_STATES
    space = load_space(config).with_overrides(**overrides)
    _check_grids(program, space)
    choice = read_choice(settings.axioms or (), settings.without_axioms or ())
    check_consistency(choice)
    how = SearchOptions(**{name: getattr(settings, name) for name in SearchMethod.__struct_fields__}, choice=choice)
    target = load_target(settings.target)
    accept = Policy(settings.accept)
    return Job(program, escape_undecodable(config), space, target, engine, how, accept, graphs)


def check_limits(settings: Settings) -> None:
    """Check the type and range of every setting, and refuse contradictory ones.

    Raises:
        SpaceError: A setting of another type, or out of range; both ``resume`` and ``force`` are set; or the engine
            does not ask the oracle.
    """
    check_options(settings)
    if settings.resume and settings.force:
        hint = "resume continues the run that is there, force replaces it"
        raise SpaceError("expected one of resume and force, got both", where="resume", hint=hint)
    if settings.checkpoint is not None and settings.engine != "guided":
        what = f"expected one of checkpoint and engine, got both, engine {settings.engine}"
        raise SpaceError(what, where="checkpoint", hint="checkpoint takes the graphs of a file, and searches nothing")
    if settings.engine == "guided" and settings.oracle == "z3":
        what = (
            "expected the oracle normal-form with the engine guided, which decides by normal forms of its own, got z3"
        )
        hint = "the engine exhaustive asks z3 about every expression; of a guided search z3 audits a sample (audit)"
        raise SpaceError(what, where="oracle", hint=hint)


def choose_config(program: KernelGraph) -> str:
    """Return the preset for a program: attention for exponentials with products, then norms, activations, adapters."""
    ops = [op for op in program.ops if not isinstance(op, GraphDefined)]
    kinds = [op.kind for op in ops if SPECS[op.kind].family is not Family.MOVE]
    products = kinds.count(OpKind.MATMUL)
    if products >= 2 and (OpKind.EXP in kinds or OpKind.SOFTMAX in kinds):
        return "attention"
    if _NORMS.intersection(kinds):
        return "norm"
    if products and ACTIVATIONS.intersection(kinds):
        return "mlp"
    if products >= 3 and {OpKind.MATMUL, OpKind.ADD} <= set(kinds) <= _SUMS_OF_PRODUCTS:
        return "lora"
    return "default"


def identity(job: Job) -> Identity:
    """Return the identity of a job: digests and options that determine its result."""
    return Identity(
        program=digest(job.program),
        space=sha256(msgspec.json.encode(space_fields(job.space))),
        engine=job.engine,
        oracle=job.options.oracle,
        prune=job.options.prune,
        target=job.target.name,
        target_digest=sha256(msgspec.json.encode(job.target)),
        seed=job.options.seed,
        accept=job.accept.value,
        axioms=job.options.choice.statements,
        without_axioms=job.options.choice.without,
    )


def space_fields(space: SearchSpace) -> dict[str, msgspec.Raw]:
    """Return the search space as JSON, by field."""
    names = [field.name for field in dataclasses.fields(space)]
    return {name: msgspec.Raw(msgspec.json.encode(getattr(space, name))) for name in names}


def versions() -> dict[str, str]:
    """Return the versions of the packages that can change a result."""
    from importlib.metadata import PackageNotFoundError, version  # loads much, and workers do not need it

    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            # A checkout on the module search path has no metadata; it is of the version that it says.
            found[name] = sys.modules[name].__version__ if name == "mirage_formal" else "not installed"
    return found


def kernel_code() -> str:
    """Return a digest of the code and data of this package that can change a kernel generated for a µGraph.

    Versions of solvers and numerical packages are not part of it: solvers decide only if a kernel may run, and
    ``build`` asks them again.
    """
    package = Path(__file__).resolve().parents[1]
    makers = ("graph", "codegen", "logic")
    code = [(f"{name}/{path}", file) for name in makers for path, file in _list_files(package / name, "*.py")]
    compiled = ("device/compile.py", package / "device" / "compile.py")
    return _digest_of_files([*code, compiled, *_list_files(data_dir("gpu"), "*")])


def environment() -> dict[str, str]:
    """Return package versions and digests of this package's code and data; all machines of a run must agree on them."""
    package = Path(__file__).resolve().parents[1]
    data = [path for name in ("axioms", "search", "gpu") for path in _list_files(data_dir(name), "*")]
    return {
        **versions(),
        "code of mirage_formal": _digest_of_files(_list_files(package, "*.py")),
        "data files": _digest_of_files(data),
    }


def _list_files(root: Path, pattern: str) -> list[tuple[str, Path]]:
    found = [(str(path.relative_to(root)), path) for path in root.rglob(pattern) if path.is_file()]
    assert found, root
    return sorted((name, path) for name, path in found if "_data" not in name and "__pycache__" not in name)


def _digest_of_files(files: Sequence[tuple[str, Path]]) -> str:
    return sha256("\n".join(f"{sha256(path.read_bytes())} {name}" for name, path in files).encode())


def host() -> HostRecord:
    """Return the record of this machine: Python, system, architecture, processors."""
    return HostRecord(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        cpus=str(processor_count()),
    )


def as_program(graph: Any) -> KernelGraph:
    """Return the kernel graph of a user's value: a KernelGraph, or a front-end graph with ``freeze``.

    Raises:
        ProgramError: Neither of them.
    """
    if isinstance(graph, KernelGraph):
        return graph
    freeze = getattr(graph, "freeze", None)
    frozen = freeze() if callable(freeze) else None
    if not isinstance(frozen, KernelGraph):
        hint = "make one with mirage_formal.new_kernel_graph()"
        raise ProgramError(f"expected a kernel graph, got {type(graph).__name__}", where="program", hint=hint)
    return frozen


def display_path(path: Path) -> str:
    """Return a path as a user would type it: relative to the working directory where it lies below it."""
    try:
        return escape_undecodable(str(path.resolve().relative_to(Path.cwd())))
    except ValueError:
        return escape_undecodable(str(path))


def escape_undecodable(name: str) -> str:
    """Return a file name as encodable text; bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def _check_grids(program: KernelGraph, space: SearchSpace) -> None:
    """Refuse a listed grid with an axis that divides no extent of any tensor, because no candidate could use it."""
    extents = sorted({extent for tensor in kernel_types(program) for extent in tensor.shape})
    for grid in space.grids or ():
        for axis, blocks in zip("xyz", grid, strict=True):
            if blocks > 1 and all(extent % blocks for extent in extents):
                what = f"grid {grid}: expected axis {axis} to divide one of the extents {extents}, got {blocks}"
                raise SpaceError(what, where="griddims", hint="choose divisors of the extents, or leave griddims out")
