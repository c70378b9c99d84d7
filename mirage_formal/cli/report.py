"""Commands ``report``, which shows runs as pages, as text or as JSON, and ``watch``, which follows a running one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from mirage_formal.cli.utilities import Json, answer, count_option, flag_option, run_command, single_command
from mirage_formal.support.errors import RunError, SpaceError
from mirage_formal.support.terminal import escape_line

_Paths = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN", help="Directory of a run, a whole, a candidate, verdicts or reproduce; two are compared."
    ),
]
_Out = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="FILE", help="Page to write.", show_default="RUN.html beside RUN")
]
_Check = Annotated[bool, flag_option("--check", "Have check establish everything first, in a process of its own.")]
_All = Annotated[bool, flag_option("--all", "RUN is a directory of runs: write a page for each, and an index of them.")]
_Proofs = Annotated[int | None, count_option("--proofs", "Candidates whose proofs are replayed and written out", "24")]
_Assembly = Annotated[
    bool, flag_option("--assembly", "Compile the kernels' sources once more, and show PTX and SASS beside them.")
]
_Text = Annotated[bool, flag_option("--text", "Print the report, and write no page.")]


def report_command(
    paths: _Paths,
    out: _Out = None,
    check: _Check = False,
    every: _All = False,
    proofs: _Proofs = None,
    assembly: _Assembly = False,
    text: _Text = False,
    json: Json = False,
) -> None:
    """Show what a run has found as one HTML page; exit code 1 if something of it does not hold."""
    from mirage_formal.report.reading import ReadLimits

    _sensible(paths, every=every, printed=text or json, both=text and json, out=out)
    if assembly:
        from mirage_formal.device.compile import require_nvrtc

        require_nvrtc()
    shown = ReadLimits(assembly=assembly) if proofs is None else ReadLimits(proofs=proofs, assembly=assembly)
    if every:
        from mirage_formal.report.write import write_index

        place, reports = write_index(paths[0], out, check=check, shown=shown)
        print(f"wrote {escape_line(str(place))}: {len(reports)} reports")
        raise typer.Exit(int(any(map(_broken, reports))))
    raise typer.Exit(_shown(paths, out, _Printed(text, json), check=check, shown=shown))


class _Printed:
    """Output that is printed in place of a page."""

    def __init__(self, text: bool, json: bool) -> None:
        self.text, self.json = text, json


def _shown(paths: list[Path], out: Path | None, printed: _Printed, *, check: bool, shown: Any) -> int:
    from mirage_formal.report.page.html import comparison_page, page
    from mirage_formal.report.reading import read_report
    from mirage_formal.report.write import default_page_path, write_page

    reports = [read_report(path, check=check, shown=shown) for path in paths]
    code = int(any(map(_broken, reports)))
    for one in reports:
        if printed.json:
            from mirage_formal.report.model import report_values

            return answer("report", code, report_values(one))
        if printed.text:
            from mirage_formal.report.text_report import report_text

            print(report_text(one, shutil.get_terminal_size((100, 24)).columns), end="")
    if not printed.text and not printed.json:
        place = out or default_page_path(paths[0])
        made = page(reports[0]) if len(reports) == 1 else comparison_page(*reports)
        write_page(made, place)
        print(f"wrote {escape_line(str(place))}: {len(made) / 1e6:.1f} MB")
        for one in reports:
            for fault in one.broken[:10]:
                print(f"does not hold: {escape_line(fault.file)}: {escape_line(fault.what)}")
    return code


def _broken(report: Any) -> bool:
    """Return whether something does not hold, or check did not establish it."""
    return bool(report.broken) or (report.checked is not None and not report.checked.held)


def _sensible(paths: list[Path], *, every: bool, printed: bool, both: bool, out: Path | None) -> None:
    """Refuse contradictory options."""
    if len(paths) > 2 or (every and len(paths) > 1):
        hint = "two runs are compared; --all takes one directory of runs"
        raise RunError(f"expected {'one directory' if every else 'one or two runs'}, got {len(paths)}", hint=hint)
    if both or (printed and (every or out is not None)):
        what = "expected a page, or --text, or --json"
        raise SpaceError(what, where="--text, --json", hint="leave out -o, --all, or one of the two")
    if printed and len(paths) > 1:
        raise SpaceError(
            "expected one run with --text or --json, got two", where="--text, --json", hint="print one at a time"
        )


_Watched = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="Directory of a run, a whole or several runs, or the --place of a tuning."),
]
_Port = Annotated[int | None, count_option("--port", "Port of 127.0.0.1", "any free one")]


def watch_command(directory: _Watched, port: _Port = None, json: Json = False) -> None:
    """Serve a page on this machine that follows a running search or tuning, until Ctrl-C.

    The page reads what the search has recorded: its units, states, candidates, least estimate, and the candidates with
    the least estimate for their number of kernels. Only who has the printed address can read it. It writes nothing.
    With --json the command prints these values once, and serves no page.
    """
    from mirage_formal.report.reading.progress_reader import ProgressReader
    from mirage_formal.report.watch_server import WatchServer

    read = _tuning_reader(directory) if (directory / "times").is_dir() else ProgressReader(directory).read
    if json:
        raise typer.Exit(answer("watch", 0, read()))
    try:
        server = WatchServer(f"Progress in {directory.resolve().name}", read, port or 0)
    except (OSError, OverflowError) as error:
        what = f"expected a free port from 1 to 65535, got {port}: {getattr(error, 'strerror', '') or error}"
        raise SpaceError(what, where="--port", hint="leave it out for any free one") from None
    with server:
        print(f"{server.address}\nCtrl-C ends it.", flush=True)
        server.serve_forever()


def _tuning_reader(root: Path) -> Callable[[], list[Any]]:
    """Return a reader of the progress of all plans in a tuning directory."""
    from mirage_formal.autotune.plans import TuningDirectory
    from mirage_formal.report.reading.progress_reader import NEWEST, RunProgress, pareto_front

    place = TuningDirectory(root)

    def read() -> list[Any]:
        times = [(device, one) for device in place.devices() for one in place.times(device).values()]
        newest = tuple(
            f"kernel {one.key[:12]} on {device}: {one.failed or f'{one.us:.2f} µs'}"
            for device, one in reversed(times[-NEWEST:])
        )
        found = []
        for path in place.plans.entries():
            plan = place.plans.read_record(path).value
            keys = {plan.key(at) for at in plan.kernels()}
            front = [(len(one.pieces), one.us, f"{one.name} {one.form}".strip()) for one in plan.candidates]
            timed = {one.key: one for _, one in times if one.key in keys}
            found.append(
                RunProgress(
                    name=f"tuning of {plan.run[:12]} for {plan.arch}",
                    place=path.relative_to(root).as_posix(),
                    state="tuning",
                    done=len(timed),
                    failed=sum(bool(one.failed) for one in timed.values()),
                    units=len(keys),
                    candidates=len(front),
                    best_us=min((us for _, us, _ in front), default=None),
                    front=pareto_front(front),
                    newest=newest,
                )
            )
        return found

    return read


if __name__ == "__main__":
    run_command(single_command(report_command))
