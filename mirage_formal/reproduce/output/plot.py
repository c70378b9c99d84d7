"""Plot of Table 5: seconds, logarithmic, against the limit of block operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirage_formal.records.reproduction import Table5
from mirage_formal.reproduce.output.paper_tables import HARDWARE
from mirage_formal.reproduce.search_variants import ARMS
from mirage_formal.support.errors import UnsupportedError
from mirage_formal.support.resources import install_command


def import_matplotlib() -> Any:
    """Return matplotlib's figures, without a display.

    Raises:
        UnsupportedError: matplotlib is not installed.
    """
    try:
        from matplotlib import figure
    except ImportError:
        hint = install_command("reproduce")
        raise UnsupportedError("expected matplotlib for the plot, got no such package", hint=hint) from None
    return figure


def draw(result: Table5, path: Path) -> None:
    """Draw our arms with solid lines and the paper's with dashed ones; hollow marks are stopped searches."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": "table5", "svg.fonttype": "none"}):
        figure = import_matplotlib().Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        for number, arm in enumerate(ARMS.values()):
            rows = sorted((row for row in result.rows if row.arm == arm.name), key=lambda row: row.paper_ops)
            if not rows:
                continue
            colour = f"C{number}"
            places = [row.paper_ops for row in rows]
            axes.plot(places, [row.wall_s for row in rows], color=colour, label=f"{arm.title} ({rows[0].workers} w)")
            for row in rows:
                face = colour if row.complete else "white"
                axes.plot([row.paper_ops], [row.wall_s], "o", color=colour, markerfacecolor=face)
        for number, (name, points) in enumerate(result.published.items()):
            axes.plot(
                list(points), list(points.values()), "s--", color=f"C{6 + number}", label=f"paper, {name}, {HARDWARE}"
            )
        axes.set_yscale("log")
        axes.set_xlabel("most block operators, inputs and accumulators counted")
        axes.set_ylabel("seconds (hollow: stopped)")
        axes.set_title("RMSNorm, X[2,4096] W[4096,6144]")
        axes.legend(fontsize="x-small")
        figure.savefig(path, format="svg", metadata={"Date": None})
