"""Page section on the baselines that a candidate was timed beside, and the command that timed them."""

from __future__ import annotations

from mirage_formal.report.model import Baselines
from mirage_formal.report.page.markup import Markup, element, join_contents, table


def peers_section(found: Baselines | None) -> Markup | None:
    """Return a table of baselines with the ratio of their times to the candidate's; above 1 the candidate is faster."""
    if found is None:
        return None
    rows = [(name, time, ratio, why or "-") for name, time, ratio, why in peer_rows(found)]
    heads = ("beside", "µs", "its time over the candidate's", "why there is none")
    return join_contents(
        [
            element("h4", None, "Beside other implementations"),
            element("p", None, describe_measurement(found)),
            table("Times of the same measurement; above 1 the candidate is faster", heads, rows),
        ]
    )


def describe_measurement(found: Baselines) -> str:
    """Return sentences that say what was measured, on which device and by which command."""
    ours = "was not timed" if found.ours is None else f"took {found.ours:.2f} µs"
    on = f" on {found.device}" if found.device else ""
    how = f"The command: {found.command}" if found.command else "The record does not say by which command"
    return f"The candidate {ours}{on}, as a record beside the run says (not checked). {how}."


def peer_rows(found: Baselines) -> list[tuple[str, str, str, str]]:
    """Return name, microseconds, ratio, and reason for a missing time, of each baseline."""
    out = []
    for one in found.timed:
        us = "-" if one.us is None else f"{one.us:.2f}"
        ratio = "-" if one.us is None or not found.ours else f"{one.us / found.ours:.2f}"
        out.append((one.name, us, ratio, one.why))
    return out


__all__ = ["describe_measurement", "peer_rows", "peers_section"]
