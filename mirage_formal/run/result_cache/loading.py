"""Results of earlier calls, loaded from the directories of their evidence without a search or a solver."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import msgspec

from mirage_formal.cache.search_store import SearchCache
from mirage_formal.codegen.target import Target, load_target
from mirage_formal.kernel_build.built_kernels import parse_acceptance
from mirage_formal.records import Identity, sha256
from mirage_formal.records.store_entry import ENTRY_FILE, EVIDENCE
from mirage_formal.revalidate.evidence_replay import replay_directory
from mirage_formal.run.result_cache.stored_reports import results_of
from mirage_formal.run.results.result import Result
from mirage_formal.support import options
from mirage_formal.support.errors import RunError, TargetError


def load(
    path: str | PathLike[str], *, target: str | PathLike[str] | None = None, accept_kernels: str = "proved"
) -> list[Result]:
    """Return the results in a directory of a run, a candidate, a whole program, or an entry of the store.

    Nothing is searched. The checker replays the proof of every result; no solver is needed for that. Nothing that a
    file says about kernels is used: they are made of the µGraphs at the first call on a GPU, as those of a search are.

    Args:
        path: The directory.
        target: Name or file of the GPU that kernels are planned for. None is the one of the search; for the directory
            of a candidate, which names none, it is the default one.
        accept_kernels: "proved": calls run only kernels that are proved to compute their µGraph. "tested": also those
            without that proof; a warning names each.

    Returns:
        The results, best first: one of a candidate's directory, at least one of any other.

    Raises:
        RunError: It is no such directory, or the run has not finished or has found nothing.
        FormatError: The evidence does not hold; names the file and what was being established.
        SpaceError: ``accept_kernels`` is neither "proved" nor "tested".
        TargetError: The target is unknown, or has other figures than the one of the search.
    """
    accept = parse_acceptance(accept_kernels)
    root = Path(options.check_value("path", path, options.Directory, "give the directory of a run"))
    if (root / ENTRY_FILE).is_file():
        SearchCache().read(root)
        root = root / EVIDENCE
    found = replay_directory(root)
    if not found.shown:
        hint = "summary.json says why, candidate by candidate"
        raise RunError("expected results, got a run that has found none", where=str(root), hint=hint)
    if target is None and found.record is not None:
        planned = _target_of(found.record.identity, root)
    else:
        planned = load_target(options.check_value("target", target or options.Settings().target, options.TargetName))
    return [one.accepting(accept) for one in results_of(found, planned)]


def _target_of(identity: Identity, root: Path) -> Target:
    """Return the target of a search; its figures must be unchanged, because candidates are ranked for them."""
    target = load_target(identity.target)
    if sha256(msgspec.json.encode(target)) != identity.target_digest:
        what = f"expected the figures of {identity.target} as they were at the search, got others"
        hint = f"target={identity.target!r} plans kernels for it as it is now"
        raise TargetError(what, where=str(root), hint=hint)
    return target


__all__ = ["load"]
