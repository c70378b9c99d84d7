"""Default directory of a search from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from msgspec.structs import replace

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.partition.cover_search import KEEP
from mirage_formal.partition.search_strategy import needs_partitioning
from mirage_formal.records import key_of
from mirage_formal.run.settings import Settings, identity, make_job
from mirage_formal.run_directory.directory_layout import RUN, list_contents
from mirage_formal.run_directory.overwrite import same_search

RUNS: Final = Path("runs")


def choose_default_directory(program: KernelGraph, settings: Settings, name: str) -> tuple[Path, Settings]:
    """Return the directory of a search that names none, and the settings with which it is opened.

    It is runs/<name>. If that holds a search of another program or with other options, the first digits of the key are
    appended to the name, and nothing there is changed. A search of the same program and options is resumed, so that
    running a script twice searches once.
    """
    root = RUNS / name
    if settings.resume or settings.force:
        return root, settings
    # A program that is searched as one may turn out to need a cover; either is continued.
    known = [identity(make_job(program, replace(settings, keep=settings.keep or KEEP)))]
    if not needs_partitioning(program, settings):
        known.insert(0, identity(make_job(program, settings)))
    for place in (root, root.with_name(f"{name}-{key_of(known[0])[:12]}")):
        if not list_contents(place, RUN).names:
            return place, settings
        if any(same_search(place, settings.config, who) for who in known):
            return place, replace(settings, resume=True)
    return root, settings


__all__ = ["choose_default_directory"]
