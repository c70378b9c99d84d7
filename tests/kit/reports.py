"""What reports show: best candidates of the examples, invented measurements, and a µGraph read back from its picture.

Best candidates are as the search found them: program, µGraph and proof, each in one file. They are made by
``mirage-formal search examples/NAME.py``, from the first candidate's mugraph.json and proof/equivalence.json. An
example that is answered by parts has a file for each part whose operators sum something, with the part's number in the
best cover; the names of a part's inputs are x0, x1 and so on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from benchmarks.gpu_stages import Row as Bench
from benchmarks.gpu_table import table
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.records.reproduction import (
    Answers,
    Comparison,
    Host,
    OracleArmRecord,
    Row,
    Source,
    Table5,
    UnprunedEstimate,
)
from tests.kit.graphs.text_reader import from_text
from tests.kit.paths import REPOSITORY

PLACE = REPOSITORY / "tests" / "report" / "examples"
FILES = {path.stem: path for path in sorted(PLACE.rglob("*.json"))}
NAMES = sorted(FILES)


@dataclass(frozen=True)
class Example:
    """A program, its best candidate, and the proof that they are equal."""

    program: KernelGraph
    candidate: KernelGraph
    proof: bytes


def example(name: str) -> Example:
    """An example by name."""
    value = json.loads(FILES[name].read_text(encoding="utf-8"))
    program, candidate = (from_text("\n".join(value[key])) for key in ("program", "candidate"))
    return Example(program, candidate, value["proof"].encode())


SVG = "{http://www.w3.org/2000/svg}"
Element = ElementTree.Element


def read_back(svg: str) -> KernelGraph:
    """The graph in a picture in which everything is opened."""
    root = ElementTree.fromstring(svg)
    (level,) = (one for one in root if one.get("data-level"))
    return from_text("\n".join(["mugraph 1", *_statements(level, "d", "")]))


def _parts(level: Element, kind: str) -> list[Element]:
    return [one for one in level if (one.get("class") or "").split(" ")[0] == kind]


def _statements(level: Element, letter: str, outer: str) -> Iterator[str]:
    """Statements of a level as the text of a µGraph has them."""
    reads: dict[str, dict[int, int]] = {}
    for edge in _parts(level, "e"):
        reads.setdefault(str(edge.get("data-to")), {})[int(str(edge.get("data-slot")))] = int(
            str(edge.get("data-tensor"))
        )
    maps = {
        (edge.get("data-to"), edge.get("data-slot")): json.loads(str(edge.get("data-maps")))
        for edge in _parts(level, "e")
    }
    nodes = sorted(_parts(level, "n"), key=_order)
    for node in nodes:
        name, kind = str(node.get("data-node")), node.get("data-kind")
        given = [(key, value) for key, value in json.loads(str(node.get("data-attributes")))]
        first, count = int(node.get("data-first") or 0), int(node.get("data-results") or 0)
        results = ", ".join(f"{letter}{first + n}" for n in range(count))
        slots = reads.get(name, {})
        assert sorted(slots) == list(range(len(slots)))
        operands = [f"{letter}{slots[n]}" for n in range(len(slots))]
        if kind == "input" and letter == "d":
            shape = str(node.get("data-shape")).replace(" × ", ",")
            given = [("dtype", str(node.get("data-dtype"))), ("shape", f"[{shape}]"), *given]
            yield f"{results} = input({node.get('data-label')}){_attributes(given)}"
        elif kind in ("op", "view"):
            yield f"{results} = {node.get('data-label')}({', '.join(operands)}){_attributes(given)}"
        elif kind in ("kernel", "thread"):
            head = "graph_defined" if kind == "kernel" else "thread_defined"
            inner = next(one for one in node.iter() if one.get("data-level") in ("block", "thread"))
            yield f"{results} = {head}({', '.join(operands)}){_attributes(given)} {{"
            sub, below = ("s", "iterator") if kind == "kernel" else ("r", "input")
            for n, one in enumerate(
                one for one in sorted(_parts(inner, "n"), key=_order) if one.get("data-kind") == below
            ):
                own = [(key, value) for key, value in json.loads(str(one.get("data-attributes")))]
                if kind == "kernel":  # what stands on the edge is what the iterator says
                    assert [list(pair) for pair in own] == maps[name, str(n)]
                yield f"{sub}{n} = input({operands[n]}){_attributes(own)}"
            yield from _statements(inner, sub, letter)
            yield "}"
        elif kind == "saver":
            yield f"output({operands[0]}){_attributes(given)}"
        elif kind == "output":
            yield f"output({operands[0]})"


def _order(node: Element) -> tuple[int, ...]:
    """Inputs, then operators in the order of their results, then outputs in theirs."""
    kind, name = node.get("data-kind"), str(node.get("data-node")).rpartition(".")[2]
    number = int("".join(char for char in name if char.isdigit()))
    return ({"input": 0, "iterator": 0, "saver": 2, "output": 2}.get(str(kind), 1), number)


def _attributes(given: list[tuple[str, str]]) -> str:
    return "".join(f" {key}={value}" for key, value in given)


def bench(run: Path, name: str, **cells: Any) -> dict[str, Any]:
    """What benchmarks/gpu_bench.py writes of a candidate, which is the one of this name."""
    chosen = run / "kernels" / name
    row = Bench(
        run.name,
        1,
        {},
        {str(chosen): {"answer": "within", "scales": []}},
        str(chosen),
        {"cudnn": "not supported"},
        {name: {"us": us} for name, us in cells.items()},
    )
    return {"command": "python -m benchmarks.gpu_bench runs", "device": {"device": "H"}, "rows": table([row], None)}


HOST = Host(processors=2, load=0.5, python="3.11", versions={})
KEY = "0" * 64


def _row(arm: str, ops: int, *, complete: bool = True) -> Row:
    return Row(
        key=KEY, arm=arm, block_ops=ops - 2, paper_ops=ops, workers=2, complete=complete, wall_s=12.5, cpu_s=20.0,
        states=123456, pruned={"<b>": 7}, configurations=1, expressions=None, classes=3, oracle_calls=9, cache_hits=1,
        oracle_unknown=0, complete_graphs=4, fingerprint_tests=4, candidates=4, structures=2, reference=1,
        extrapolated=None
        if complete
        else UnprunedEstimate(states=1e12, seconds=1e7, factor=20.5, measured={5: 10, 6: 200}),
    )  # fmt: skip


def write_figures(root: Path) -> None:
    """Two of the three files that reproduce writes."""
    figures = Table5(
        program="RMSNorm", space="<script>alert(1)</script>", kernel_ops=2, time_limit_s=60, host=HOST,
        rows=(_row("guided", 7), _row("unpruned", 7, complete=False)),
        comparisons=(
            Comparison(key=KEY, paper_ops=7, both=4, guided_only=0, exhaustive_only={"copies": 3}, unexplained=0),
        ),
        published={"8 threads": {7: 22.0}}, published_by="the paper, Table 5",
    )  # fmt: skip
    answers = Answers(
        host=HOST,
        seed=1,
        sources=(Source(key=KEY, name="norm", space="norm", queries=50, sampled=5, saturated=True),),
        rows=(
            OracleArmRecord(key=KEY, source="norm", arm="z3", proved=3, refuted=1, unknown=1, pruned=1, valid=3,
                  wrongly_pruned=0, wrongly_kept=0, us_per_query=12.0),
        ),
    )  # fmt: skip
    root.mkdir(parents=True)
    (root / "table5.json").write_bytes(msgspec.json.encode(figures))
    (root / "oracle.json").write_bytes(msgspec.json.encode(answers))
