"""Commands ``store ...``: stored results of earlier searches, with their evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mirage_formal.cli.utilities import STYLE, Json, answer, flag_option, run_command
from mirage_formal.support.errors import RunError
from mirage_formal.support.terminal import escape_line

app = typer.Typer(
    name="store",
    help="What earlier searches have found, with its evidence: list, check, take in, remove.",
    no_args_is_help=True,
    **STYLE,
)

_KEY_HELP: Final = "First digits of the entry's key as list shows it, or its directory."
_Keys = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY]...", help=f"{_KEY_HELP} None: all.", show_default=False)
]
_Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of an entry, as it was copied.")]
_Migrate = Annotated[bool, flag_option("--migrate", "Take an entry of another version, if all of it holds here.")]
_Everything = Annotated[bool, flag_option("--all", "Also compiled kernels, tuning plans and builds of the emulator.")]
_Unusable = Annotated[bool, flag_option("--unusable", "Only what cannot be used here, as entries of other versions.")]


@app.command("list")
def list_command(json: Json = False) -> None:
    """List every search, by its record alone, and count other entries; verify looks at the evidence."""
    from mirage_formal.cache.cache_directory import other_kinds
    from mirage_formal.cache.search_store import SearchCache
    from mirage_formal.run.result_cache.entry_checks import check_record

    place = SearchCache()
    found = [check_record(path) for path in place.entries()]
    if json:
        raise typer.Exit(answer("store list", 0, {"store": str(place.root), "entries": [_row(one) for one in found]}))
    for one in found:
        print(escape_line(_line(one), 1000))
    size = sum(one.record.bytes for one in found if one.record is not None)
    print(escape_line(f"{len(found)} entries, {size / 1e6:.1f} MB, in {place.root}"))
    for cache in other_kinds():
        if entries := len(cache.entries()):
            print(escape_line(f"{cache.kind}: {entries} entries, {cache.size() / 1e6:.1f} MB, in {cache.root}"))


@app.command("import")
def import_command(directory: _Directory, migrate: _Migrate = False, json: Json = False) -> None:
    """Take an entry from elsewhere; every proof in it is replayed before."""
    from mirage_formal.cache.search_store import SearchCache
    from mirage_formal.run.result_cache.entry_checks import import_entry

    path, found = import_entry(SearchCache(), directory, migrate=migrate)
    if json:
        raise typer.Exit(answer("store import", 0, {"entry": str(path), "candidates": len(found.shown)}))
    print(escape_line(f"{path}: {len(found.shown)} candidates, every proof replayed"))


@app.command("verify")
def verify_entries_command(keys: _Keys = None, json: Json = False) -> None:
    """Establish the evidence of entries again, without solvers; exit code 1 if something does not hold.

    Of entries that are named, all candidates are printed.
    """
    from mirage_formal.cache.search_store import SearchCache
    from mirage_formal.run.result_cache.entry_checks import check_evidence, found_entry

    place = SearchCache()
    paths = [found_entry(place, key) for key in keys] if keys else place.entries()
    found = []
    for path in paths:
        one = check_evidence(path)
        found.append(one)
        if not json:
            for text in (_line(one), *(_details(one) if keys else ())):
                print(escape_line(text, 1000))
    bad = sum(one.replayed is None for one in found)
    code = 1 if bad else 0
    if json:
        raise typer.Exit(answer("store verify", code, [_row(one) for one in found]))
    print(f"{len(found) - bad} of {len(found)} entries hold")
    raise typer.Exit(code)


@app.command("clear")
def clear_command(
    keys: _Keys = None, unusable: _Unusable = False, everything: _Everything = False, json: Json = False
) -> None:
    """Remove entries of searches; with --all, also machine code and whatever else is kept."""
    from mirage_formal.cache.cache_directory import other_kinds
    from mirage_formal.cache.search_store import SearchCache
    from mirage_formal.run.result_cache.entry_checks import check_record, found_entry

    place = SearchCache()
    paths = [found_entry(place, key) for key in keys] if keys else place.entries()
    removed = 0
    for path in paths:
        if path.parent.parent.parent.parent != place.root:
            raise RunError("expected an entry of the store", where=str(path), hint=f"the store is {place.root}")
        if not unusable or check_record(path).why:
            place.drop(path)
            removed += 1
    for cache in other_kinds() if everything else ():
        more = cache.entries()
        for path in more:
            cache.drop(path)
        removed, paths = removed + len(more), [*paths, *more]
    if json:
        raise typer.Exit(answer("store clear", 0, {"removed": removed, "of": len(paths)}))
    print(f"removed {removed} of {len(paths)} entries")


def _row(one: Any) -> dict[str, Any]:
    """Return an entry as plain values."""
    import msgspec

    found = one.replayed
    return {
        "key": one.path.name,
        "path": str(one.path),
        "usable": not one.why,
        "why": one.why,
        "record": None if one.record is None else msgspec.to_builtins(one.record),
        "established": None
        if found is None
        else [
            {
                "digest": shown.digest,
                "verdict": "equivalent",
                "us": shown.us,
                "conditions": list(shown.verdict.conditions),
            }
            for shown in found.shown
        ],
    }


def _line(one: Any) -> str:
    """Return an entry as one line."""
    if one.record is None:
        return f"{one.path.name[:12]}  refused: {one.why}"
    record, identity = one.record, one.record.key.identity
    what = (
        *(one.path.name[:12], record.key.kind, identity.target, record.key.config or "-", identity.program[:12]),
        *(f"{record.value.candidates} candidates", f"{record.bytes / 1e3:.0f} kB", record.value.status),
    )
    return "  ".join(what) + (f"  unusable: {one.why}" if one.why else "")


def _details(one: Any) -> list[str]:
    """Return lines on the answer of an entry, and on the facts established about it."""
    if one.record is None or one.replayed is None:
        return []
    record, identity = one.record, one.record.key.identity
    limit = "" if record.value.limit_s is None else f" after {record.value.limit_s:g} s"
    asked = f"engine {identity.engine}, oracle {identity.oracle}, seed {identity.seed}, accept {identity.accept}"
    lines = [
        f"program {identity.program}{f', bucket {record.key.bucket}' if record.key.bucket else ''}",
        f"space {identity.space}, {asked}",
        f"search {record.value.status}{limit}; version {record.key.package}, code {record.key.code[:12]}",
        f"evidence in {one.path / 'evidence'}",
    ]
    for number, shown in enumerate(one.replayed.shown, 1):
        conditions = len(shown.verdict.conditions)
        added = "; ".join(shown.verdict.added) or "none"
        lines.append(
            f"{number:3}  {shown.digest[:12]}  equivalent, {conditions} conditions (not the program's: {added})  "
            f"est. {shown.us:.1f} us"
        )
    return lines


if __name__ == "__main__":
    run_command(app)
