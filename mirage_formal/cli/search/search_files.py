"""Search of the programs in files, and its output."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mirage_formal.support.errors import MirageError, ProgramError, SpaceError
from mirage_formal.support.garbage import collect_rarely
from mirage_formal.support.options import Settings
from mirage_formal.support.terminal import escape_line

if TYPE_CHECKING:
    from mirage_formal.cli.graphs.user_file import SourceProgram
    from mirage_formal.partition.whole_report import WholeReport
    from mirage_formal.run.driver import RunArguments
    from mirage_formal.run.results.run_report import RunReport
    from mirage_formal.support.errors import NothingFoundError

INTERRUPTED: Final = 130


def check_program(files: Sequence[Path], program: str | None) -> None:
    """Check that a program is named for one file alone.

    Raises:
        SpaceError: There are several files.
    """
    if program is not None and len(files) > 1:
        hint = "leave --program out, or give one file"
        raise SpaceError(f"expected one file, got {len(files)}", where="--program", hint=hint)


def search_files(
    files: Sequence[Path], wanted: str | None, places: tuple[str | None, str], settings: Settings, *, as_json: bool
) -> int:
    """Search the programs of files.

    Args:
        files: The files; all are read before the first search.
        wanted: Name of the only program to search.
        places: The directory of the evidence, with one in it for each of several files, and the progress mode.
        settings: Settings of each search.
        as_json: Whether to print the reports as JSON.

    Returns:
        The exit code.
    """
    from msgspec import structs

    from mirage_formal.api.no_result_diagnosis import add_source_lines, find_reasons_for_no_result
    from mirage_formal.cli.graphs.user_file import choose, read_programs
    from mirage_formal.partition.search_strategy import search_or_cover
    from mirage_formal.run.executors import make_executor
    from mirage_formal.run.progress.display_choice import display
    from mirage_formal.support.guard import stopped_by

    out, progress = places
    tasks: list[tuple[str, SourceProgram, Path, Path]] = []
    for file in files:
        programs = read_programs(file, settings.time_limit)
        chosen = choose(programs, wanted, file)
        root = Path(out or Path("runs") / file.stem)
        root = root / file.stem if out is not None and len(files) > 1 else root
        several = len(programs) > 1 and (out is None or len(chosen) > 1)
        tasks += [(name, written, file, root / name if several else root) for name, written in chosen.items()]
    if double := [str(place) for place, count in Counter(place for *_, place in tasks).items() if count > 1]:
        hint = "search files of the same name one after another, with an --out each"
        raise ProgramError(f"expected another directory for each program, got {double[0]} twice", hint=hint)
    code = 0
    reports = []
    collect_rarely()
    with make_executor(settings) as executor:
        executor.work_meanwhile(_LOADS)
        for place, (name, written, file, directory) in enumerate(tasks, 1):
            graph, origins = written.program, written.origins
            if written.unmarked:
                text = f"{name}: no output is marked; outputs are what nothing reads: {', '.join(written.unmarked)}"
                _print_note(text)
            mine = settings
            if settings.resume and len(tasks) > 1 and not directory.exists():
                mine = structs.replace(settings, resume=False)  # an interrupted run had not come to this program
            with display(progress, "search") as shown, add_source_lines(graph, origins):
                about: RunArguments = {
                    "name": name,
                    "source": str(file),
                    "watch": shown.watch(name),
                    "executor": executor,
                }
                report = search_or_cover(graph, mine, directory, **about)
            if place == len(tasks):
                executor.dismiss()  # they leave while the report is printed
            nothing = find_reasons_for_no_result(report, graph, mine, origins)
            reports.append((report, nothing))
            if not as_json:
                _print_report(report, nothing)
            if report.summary.status == "interrupted":
                code = stopped_by() or INTERRUPTED
                break
            code = max(code, 1 if report.failed or nothing is not None else 0)
    return _answer(code, reports) if as_json else code


def _load_rich() -> None:
    import rich.console  # noqa: F401


def _load_tables() -> None:
    import mirage_formal.partition.cover_table  # noqa: F401


def _load_kernel_choice() -> None:
    import mirage_formal.kernel_build.candidate_preference  # noqa: F401


def _load_kernels() -> None:
    import mirage_formal.kernel_build.built_kernels  # noqa: F401


def _load_running_maxima() -> None:
    import mirage_formal.codegen.online_softmax.stabilize  # noqa: F401


#: Loads of modules that are needed once there are results, while workers compute these.
_LOADS: Final = (_load_rich, _load_tables, _load_kernel_choice, _load_kernels, _load_running_maxima)


def _print_note(text: str) -> None:
    from rich.console import Console

    Console(stderr=True).print(escape_line(text), markup=False, highlight=False, soft_wrap=True)


def _print_report(report: RunReport | WholeReport, nothing: NothingFoundError | None) -> None:
    from rich.console import Console

    from mirage_formal.partition.cover_table import print_any

    print_any(report, Console(), nothing)


def _answer(code: int, reports: Sequence[tuple[RunReport | WholeReport, NothingFoundError | None]]) -> int:
    """Print reports as JSON, and return the exit code."""
    from mirage_formal.partition.cover_table import reports_values

    return print_answer(code, reports_values(reports))


def print_answer(code: int, result: object, error: MirageError | None = None) -> int:
    """Print the result of a search as JSON, and return the exit code."""
    from mirage_formal.records.answer import answer_text

    print(answer_text("search", code, result, error))
    return code
