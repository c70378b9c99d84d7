"""A headless Chromium that is there already, and pages of runs; without one, every test here says so and is skipped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mirage_formal.cli.graphs.user_file import load_programs
from mirage_formal.device.disassembly import AssemblyText
from mirage_formal.kernel_build.triton.triton_output import write_run
from mirage_formal.partition.search_strategy import search_or_cover
from mirage_formal.report.page.html import comparison_page, index, page
from mirage_formal.report.reading import ReadLimits, kernel_reader, read_report
from mirage_formal.report.reading.adjacent_files import BENCH_FILE
from mirage_formal.run.settings import Settings
from mirage_formal.run.verify.verdicts import compute_verdicts, write_verdicts
from tests.kit.reports import bench, write_figures
from tests.kit.runs import small_runs
from tests.report.conftest import LAYER

#: The command line, with this Python.
COMMAND = (sys.executable, "-c", "from mirage_formal.cli.app import main; main()")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def chromium() -> str | None:
    """Where a Chromium is; MIRAGE_CHROMIUM names another one."""
    return os.environ.get("MIRAGE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A browser for the session."""
    found = chromium()
    if found is None:
        pytest.skip(f"browser tests need one of {', '.join(NAMES)}, or MIRAGE_CHROMIUM; none was found")
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="browser tests need playwright: pip install '.[browser]'"
    )
    with sync_api.sync_playwright() as play:
        started = play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield started
        started.close()


@dataclass
class Opened:
    """A page in the browser, with what it asked for and complained about.

    Attributes:
        page: Playwright's page.
        asked: Addresses of requests, other than the page itself.
        errors: Messages of the console and of scripts.
    """

    page: Any
    asked: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def quiet(self) -> None:
        """Nothing was asked for, and nothing went wrong."""
        assert self.asked == []
        assert self.errors == []


@pytest.fixture
def opening(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Opens a file; options are those of a browser's context."""
    contexts = []

    def opened(path: Path, **options: Any) -> Opened:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        contexts.append(context)
        made = Opened(context.new_page())
        address = path.resolve().as_uri()
        made.page.on("request", lambda one: None if one.url.split("#")[0] == address else made.asked.append(one.url))
        made.page.on("console", lambda one: made.errors.append(one.text) if one.type in ("error", "warning") else None)
        made.page.on("pageerror", lambda one: made.errors.append(str(one)))
        made.page.goto(address)
        if options.get("java_script_enabled", True):
            made.page.wait_for_selector("html[data-ready]")
        return made

    yield opened
    for context in contexts:
        context.close()


def listings(source: str, arch: str) -> tuple[AssemblyText, AssemblyText]:
    """Two instructions for some lines of a source, the first ones last, as neither NVRTC nor nvdisasm may be here."""
    count = source.count("\n") + 1
    lines = [line for line in range(count, 0, -4) for _ in range(2)]
    text = "\n".join(f"/*{number:04x}*/ IMAD R{line}, R2, 0x{line:x}, RZ ;" for number, line in enumerate(lines))
    return AssemblyText("ptx", text, tuple(lines)), AssemblyText("sass", text, tuple(lines))


PROGRAM = """
import mirage_formal as mf
graph = mf.new_kernel_graph()
x = graph.new_input(dims=(4, 8), dtype=mf.float16)
graph.mark_output(graph.exp(x) / graph.reduction(graph.exp(x), 1))
"""


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Pages by what they are of: a run, one with forged evidence, a whole program, verdicts, two runs, an index.

    "listed" is a run with assembly of its kernels, "small" the same without it; "gated" has no kernels.
    """
    root = tmp_path_factory.mktemp("pages")
    small_runs.make(root / "small", keep=30)
    gated = root / "gated"
    small_runs.make(gated, "gated_mlp", kernels=0)
    (root / "layer.py").write_text(LAYER)
    (layer,) = load_programs(root / "layer.py").values()
    search_or_cover(layer, Settings(workers=1, cache=False), root / "layer", name="layer")
    (root / "one.py").write_text(PROGRAM)
    (root / "two.py").write_text(PROGRAM.replace("reduction(graph.exp(x), 1)", "reduction(graph.exp(x), 0)"))
    (right,), (wrong,) = (load_programs(root / f"{name}.py").values() for name in ("one", "two"))
    with write_verdicts(root / "verdicts", "softmax", right) as keep:
        for one in compute_verdicts(right, [wrong, right], "graphs"):
            keep(one)
    shutil.copytree(root / "small", root / "forged")
    hostile = root / "forged" / "run.json"
    hostile.write_text(
        hostile.read_text().replace(
            '"attention"', '"<script>document.title=1</script>\\u202e<img src=x onerror=alert(1)>"', 1
        )
    )
    (next((root / "forged" / "candidates").iterdir()) / "proof" / "equivalence.json").write_text("{}")
    write_figures(root / "figures")
    beside = root / "beside-b1"
    shutil.copytree(root / "small", beside)
    ((candidate, _), *_) = write_run(beside, 1)
    (root / BENCH_FILE).write_text(json.dumps(bench(beside, candidate, ours=4.0, eager=8.0, read_plain=2.0)))
    with patch.object(kernel_reader, "assembly_texts", listings):
        reports = {"listed": read_report(root / "small", shown=ReadLimits(assembly=True))}
    small_runs.make(root / "unbuilt", keep=2, kernels=0)
    reports["unbuilt"] = read_report(root / "unbuilt")
    subprocess.run([*COMMAND, "tools", "build", str(root / "unbuilt"), "--count", "1"], check=True, capture_output=True)
    reports["built"] = read_report(root / "unbuilt")
    names = ("small", "gated", "layer", "verdicts", "forged", "figures")
    reports |= {name: read_report(root / name) for name in names} | {"beside": read_report(beside)}
    made = {name: page(one) for name, one in reports.items()}
    made["two"] = comparison_page(reports["small"], reports["gated"])
    made["index"] = index(
        "Reports", [(reports[name], f"{name}.html") for name in (*names, "beside") if name != "forged"]
    )
    found = {}
    for name, text in made.items():
        found[name] = root / f"{name}.html"
        found[name].write_text(text, encoding="utf-8")
    return found
