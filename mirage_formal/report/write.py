"""Output of report pages: their default paths, and the protection of evidence directories."""

from __future__ import annotations

from pathlib import Path

from mirage_formal.records import write_atomic
from mirage_formal.report.model import ReportModel
from mirage_formal.report.page.html import index, page
from mirage_formal.report.reading import ReadLimits, is_evidence, is_reportable, read_report
from mirage_formal.report.reading.candidate_reader import VERDICTS_FILE
from mirage_formal.support.errors import RunError

INDEX_FILE = "index.html"


def default_page_path(path: Path) -> Path:
    """Return the default page of a directory: beside it, because every file inside is evidence."""
    place = path.resolve()
    return place.with_name(f"{place.name}.html")


def write_page(text: str, out: Path) -> None:
    """Write the text of a page to a file.

    Raises:
        RunError: It would lie inside of evidence, where every file is listed, or cannot be written.
    """
    for folder in (out.resolve().parent, *out.resolve().parent.parents):
        if is_evidence(folder):
            hint = "write it elsewhere: check would refuse a file that the manifest does not list"
            raise RunError(
                f"expected a place outside of evidence, got one inside {folder.name}", where=str(out), hint=hint
            )
    if out.is_dir():
        raise RunError("expected a file to write, got a directory", where=str(out), hint="as in -o report.html")
    try:
        write_atomic(out, text.encode("utf-8", "replace"))
    except OSError as error:
        raise RunError(
            f"expected a file that can be written: {error.strerror}", where=str(out), hint="fix -o"
        ) from None


def write_index(root: Path, out: Path | None, *, check: bool, shown: ReadLimits) -> tuple[Path, list[ReportModel]]:
    """Write a page for each directory of evidence in a directory, and an index of them.

    Args:
        root: The directory.
        out: The index; pages lie beside it. None is index.html in the directory.
        check: As for ``read_report``.
        shown: As for ``read_report``.

    Returns:
        Path of the index, and the reports.

    Raises:
        RunError: There is no evidence in the directory, or a page cannot be written.
    """
    if not root.is_dir():
        raise RunError(
            "expected a directory of runs, got none", where=str(root), hint="give the directory that has them"
        )
    found = [path for path in sorted(root.iterdir()) if path.is_dir() and is_reportable(path)]
    nested = [below for path in sorted(root.iterdir()) if path.is_dir() and not is_reportable(path)
              for below in sorted(path.iterdir()) if below.is_dir() and is_reportable(below)]  # fmt: skip
    if not found and not nested:
        hint = "give a directory whose directories are runs; for one run leave --all out"
        raise RunError("expected directories of runs, got none", where=str(root), hint=hint)
    place = out or root / INDEX_FILE
    reports: list[tuple[ReportModel, str]] = []
    for path in (*found, *nested):
        name = f"{'-'.join(path.relative_to(root).parts)}.html"
        checked = check and is_evidence(path) and not (path / VERDICTS_FILE).is_file()
        one = read_report(path, check=checked, shown=shown)
        write_page(page(one), place.parent / name)
        reports.append((one, name))
    write_page(index(f"Reports of {root.resolve().name}", reports), place)
    return place, [one for one, _ in reports]
