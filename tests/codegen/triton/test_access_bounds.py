"""Bounds of loads and stores, from the text of a file: decided as an evaluation of all programs and lanes decides."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from mirage_formal.codegen.program.integers import evaluate_expression
from mirage_formal.codegen.safety.obligation_types import DischargedObligation, UndecidedObligation, ViolatedObligation
from mirage_formal.codegen.triton.access_bounds import AccessBounds, discharge_access_bounds, find_violated_bounds
from mirage_formal.codegen.triton.file import TritonFile, triton_file
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.graph.verifier import faults
from tests.kit.graphs import corpus_programs, workloads
from tests.kit.graphs.random_graphs import random_graph
from tests.kit.kernels import example_kernels, tails
from tests.kit.kernels import triton_files as kit

LORA = triton_file(workloads.lora_fused(4, 8, 12, 2, grid=3, loop=4), workloads.lora(4, 8, 12, 2), kit.H200)


class Tile:
    """A block of values: whatever is done with it is another one."""

    def __getattr__(self, name: str) -> Tile:
        return self

    def __call__(self, *given: Any, **options: Any) -> Tile:
        return self

    def _other(self, *given: Any) -> Tile:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _other
    __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __and__ = __getitem__ = _other  # type: ignore[assignment]
    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False)
class Pointer:
    """A parameter and an offset."""

    name: str
    offset: Any = 0

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.name, self.offset + other)

    def __sub__(self, other: Any) -> Pointer:
        return Pointer(self.name, self.offset - other)


class Language(Tile):
    """Stands for ``triton.language``: notes which elements are accessed, line by line."""

    def __init__(self, ids: tuple[int, ...], seen: dict[tuple[str, str], tuple[int, int]]) -> None:
        self.ids, self.seen = ids, seen

    def program_id(self, axis: int) -> int:
        return self.ids[axis]

    def arange(self, start: int, end: int) -> Any:
        return np.arange(start, end)

    def zeros(self, shape: list[int], kind: object) -> Any:
        return np.zeros(shape, int)

    def load(self, at: Pointer, mask: Any = True, other: object = 0, eviction_policy: str = "") -> Tile:
        return self._note("load", at, mask)

    def store(self, at: Pointer, value: object, mask: Any = True) -> Tile:
        return self._note("store", at, mask)

    def _note(self, kind: str, at: Pointer, mask: Any) -> Tile:
        offset, inside = np.broadcast_arrays(np.asarray(at.offset), np.asarray(mask))
        reached = offset[inside]
        low, high = self.seen.get((kind, at.name), (0, 0))
        if reached.size:
            self.seen[kind, at.name] = min(low, int(reached.min())), max(high, int(reached.max()))
        return Tile()


def accessed(file: TritonFile) -> dict[tuple[str, str, str], tuple[int, int]]:
    """The least and the largest index of all accesses, by function, kind and pointer: every program is executed."""
    found: dict[tuple[str, str, str], tuple[int, int]] = {}
    tree = ast.parse(file.text)
    for one in file.functions:
        node = next(item for item in tree.body if isinstance(item, ast.FunctionDef) and item.name == one.name)
        node.decorator_list = []
        code = compile(ast.Module([node], []), "file", "exec")
        for ids in product(*map(range, one.grid)):
            seen: dict[tuple[str, str], tuple[int, int]] = {}
            helpers = {name: Tile() for name in one.helpers}
            names: dict[str, Any] = {"tl": Language(ids, seen), "BFLOAT16": None, "INTERPRETED": True, **helpers}
            exec(code, names)
            names[one.name](*map(Pointer, one.pointers))
            for (kind, pointer), (low, high) in seen.items():
                before = found.get((one.name, kind, pointer), (0, 0))
                found[one.name, kind, pointer] = min(before[0], low), max(before[1], high)
    return found


def expected(file: TritonFile) -> dict[tuple[str, str, str], bool]:
    """Whether all accesses of a function by a pointer are in bounds."""
    spans = {
        (one.name, pointer): span
        for one in file.functions
        for pointer, span in zip(one.pointers, one.spans, strict=True)
    }
    return {key: low >= 0 and high < spans[key[0], key[2]] for key, (low, high) in accessed(file).items()}


def decided(accesses: tuple[AccessBounds, ...]) -> dict[tuple[str, str, str], bool]:
    """The same by the findings, none of which is undecided."""
    found: dict[tuple[str, str, str], bool] = {}
    for one in accesses:
        finding, key = one.discharged.finding, (one.function, one.access, one.discharged.obligation.subject)
        assert isinstance(finding, DischargedObligation | ViolatedObligation), finding
        found[key] = found.get(key, True) and isinstance(finding, DischargedObligation)
    return found


def odd_graphs() -> dict[str, Sequence[KernelGraph]]:
    product, chain = tails.product(19, 37, 45, (16, 16, 16)), tails.chain((5, 197), (8, 256), (2, 4))
    return {"product": product, "chain": chain, **{f"drawn{seed}": tails.drawn(seed) for seed in range(16)}}


@pytest.mark.parametrize("row", [row for row in example_kernels.fastest() if row.endswith(("-b1", "-b8"))])
def test_every_access_of_the_fastest_candidates_is_in_bounds(row: str) -> None:
    name, batch = row.rsplit("-b", 1)
    file = kit.case(row, example_kernels.real(name, int(batch)), example_kernels.fastest()[row]).file
    found = discharge_access_bounds(file)
    assert {(one.function, one.discharged.obligation.subject) for one in found} == {
        (one.name, pointer) for one in file.functions for pointer in one.pointers
    }
    assert all(decided(found).values())


@pytest.mark.parametrize("name", odd_graphs())
def test_tiles_that_overhang_are_masked(name: str) -> None:
    file = kit.case(name, *odd_graphs()[name]).file
    found = decided(discharge_access_bounds(file))
    assert found == expected(file)
    assert all(found.values())


def test_random_graphs_and_operators_alone() -> None:
    graphs = [
        kit.of_type(random_graph(random.Random(n), frozenset(OpKind), kernels=3), DType.FLOAT32) for n in range(40)
    ]
    graphs += [corpus_programs.build(name, small=True).freeze() for name in list(corpus_programs.FILES)[::8]]
    for graph in (one for one in graphs if not faults(one)):
        assert all(decided(discharge_access_bounds(kit.case("x", graph, graph, raw=True).file)).values())


def _first(text: str, line: str) -> str:
    """Put a line before the others of the function."""
    return text.replace("    r16 = ", f"    {line}\n    r16 = ")


def _rebound(text: str, before: str = "pass", behind: str = "pass") -> str:
    """Let an access of the loop read a name that is bound again, before the loop or at the end of each iteration."""
    text = text.replace("W_ptr + step * 2 * 12 + pid_x * 4", "W_ptr + step * 2 * 12 + base")
    text = text.replace("    acc_8 = tl.full", f"    base = pid_x * 4\n    {before}\n    acc_8 = tl.full")
    return text.replace("        acc_8 = acc_8 + add_7\n", f"        acc_8 = acc_8 + add_7\n        {behind}\n")


#: Changes of the text, and the accesses that they put out of bounds.
WRONG: dict[str, tuple[str, str, str]] = {
    "offset": ("W_ptr + step * 2 * 12", "W_ptr + step * 2 * 13", "load W_ptr"),
    "one behind": ("t4_ptr + pid_x * 4", "t4_ptr + 1 + pid_x * 4", "store t4_ptr"),
    "one before": ("t4_ptr + pid_x * 4", "t4_ptr - 1 + pid_x * 4", "store t4_ptr"),
    "tile": ("X_ptr + step * 2", "X_ptr + step * 3", "load X_ptr"),
    "mask": ("(r16[:, None] < 2) & (r16[None, :] < 4)", "(r16[:, None] < 3)", "load B_ptr, load W_ptr"),
    "no mask": ("mask=(r16[:, None] < 2) & (r16[None, :] < 2)", "cache_modifier=''", "load A_ptr"),
    "axis": ("(r16[:, None] < 4) & (r16[None, :] < 2)", "(r16[None, :] < 4) & (r16[None, :] < 2)", "load X_ptr"),
    "iterations": ("range(4)", "range(5)", "load A_ptr, load W_ptr, load X_ptr"),
    "other lanes": ("r16[:, None] * 2 + r16[None, :]", "r16[None, :] * 2 + r16[:, None] * 3", "load A_ptr"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_offset_is_out_of_bounds(name: str) -> None:
    old, new, wrong = WRONG[name]
    assert old in LORA.text
    file = replace(LORA, text=LORA.text.replace(old, new))
    found = discharge_access_bounds(file)
    assert ", ".join(sorted(" ".join(key[1:]) for key, good in decided(found).items() if not good)) == wrong
    one = find_violated_bounds(found)
    assert one is not None
    finding, query = one.discharged.finding, one.discharged.obligation.query
    assert isinstance(finding, ViolatedObligation)
    assert query is not None
    model = dict(finding.model)  # at these values the mask holds and the index is none
    assert all(evaluate_expression(e, model) for e in query.true)
    assert find_violated_bounds(discharge_access_bounds(LORA)) is None


def test_findings_are_those_of_an_evaluation() -> None:
    """Constants of index expressions and masks, changed at random: out of bounds exactly where a program is."""
    rng, bad = random.Random(1), 0
    lines = LORA.text.split("\n")
    places = [n for n, line in enumerate(lines) if "_ptr +" in line or "mask=" in line]
    for _ in range(120):
        changed, number = list(lines), rng.choice(places)
        words = changed[number].split(" ")
        at = rng.choice([i for i, word in enumerate(words) if word.strip("(),").isdigit()])
        digits = words[at].strip("(),")
        words[at] = words[at].replace(digits, str(max(0, int(digits) + rng.choice((-1, 1, 2)))))
        changed[number] = " ".join(words)
        file = replace(LORA, text="\n".join(changed))
        wanted = expected(file)
        assert decided(discharge_access_bounds(file)) == wanted, changed[number]
        bad += not all(wanted.values())
    assert 30 < bad < 110


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("B_ptr + pid_x * 4", "B_ptr + acc_8 * 4"), "not an expression of ids"),
        (lambda text: text.replace("B_ptr + pid_x * 4", "B_ptr + X_ptr + pid_x * 4"), "expected one pointer"),
        (lambda text: text.replace("    add_7 =", "    tl.atomic_add(B_ptr, 1.0)\n        add_7 ="), "another way"),
        (lambda text: text.replace("B_ptr + pid_x * 4", "B_ptr + (pid_x - 1) // 2"), "dividend may be negative"),
        (lambda text: text.replace("B_ptr + pid_x * 4", "B_ptr + pid_x * 2000000000 // 2000000000"), "leave 32 bits"),
        (lambda text: text.replace("B_ptr + pid_x * 4", "B_ptr + pid_x * 4 // pid_x"), "divisor"),
        (lambda text: text.replace("(r16[:, None] < 2) &", "(X_0 < 2) &"), "not an expression of ids"),
        (lambda text: _rebound(text, before="base += 1000"), "not an expression of ids"),
        (lambda text: _rebound(text, behind="base = base + 1000"), "not an expression of ids"),
        (lambda text: _rebound(text, before="for base in range(1000, 2000): pass"), "not an expression of ids"),
        (lambda text: text.replace("range(4)", "range(100, 104)"), "not an expression of ids"),
        (lambda text: _first(text, "for step in range(2): 0").replace("range(4)", "range(1, 9)"), "not an expression"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_undecided(change: Callable[[str], str], reason: str) -> None:
    file = replace(LORA, text=change(LORA.text))
    assert file.text != LORA.text
    said = [
        one.discharged.finding.reason
        for one in discharge_access_bounds(file)
        if isinstance(one.discharged.finding, UndecidedObligation)
    ]
    assert said
    assert all(reason in one for one in said)


def test_a_later_loop_does_not_bound_what_an_earlier_one_computed() -> None:
    """The name of a counter may be bound by several loops; a value keeps the bounds of the loop that computed it."""
    text = _first(LORA.text, "for step in range(100): base = step * 4").replace("B_ptr + pid_x * 4", "B_ptr + base")
    assert find_violated_bounds(discharge_access_bounds(replace(LORA, text=text))) is not None
    twice = text.replace("    B_3 = ", "    for step in range(2): 0\n    B_3 = ")
    assert find_violated_bounds(discharge_access_bounds(replace(LORA, text=twice))) is not None


@pytest.mark.parametrize("sizes", [(64, 64, 1 << 26, (64, 64, 64)), (64, 1 << 26, 64, (64, 1 << 12, 64))])
def test_offsets_of_large_tensors_have_64_bits(sizes: tuple[int, int, int, tuple[int, int, int]]) -> None:
    program, graph = tails.product(*sizes)
    file = triton_file(graph, program, kit.H200)
    assert ".to(tl.int64)" in file.text
    assert all(decided(discharge_access_bounds(file)).values())
    narrow = discharge_access_bounds(replace(file, text=file.text.replace(".to(tl.int64)", "")))
    reasons = {
        one.discharged.finding.reason for one in narrow if isinstance(one.discharged.finding, UndecidedObligation)
    }
    assert reasons == {"an intermediate may leave 32 bits"}
