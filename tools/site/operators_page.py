"""The page of operators, from the operator table.

``python tools/site/operators_page.py > docs/reference/operators.md``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mirage_formal.graph.ops import SPECS, Family, Lax, Level, OpSpec
from mirage_formal.search.bounds import SEARCHABLE

_HEAD = """# Operators

Printed by `python tools/site/operators_page.py` from `mirage_formal/graph/ops.py`; a test compares. These are the
operators of µGraphs. Functions of the front end that are composed of them (clamp, log_softmax, ...) are in the
[API](api.md), and what is imported from modules is in [Operators of PyTorch](../torch.md).

- **Levels**: K kernel graph, B block graph, T thread graph.
- **Attributes** in brackets may be left out. A *value* is a number in the place of the last operand.
- **Field**: how a [fingerprint](../fingerprint.md) pictures it: exactly (linear, division, exponential, root), as a
  random function (opaque), or not at all (none).
- **Proposed**: whether a search may propose it where a [search space](../howto/space.md) lists it. The others are for
  programs and for graphs that are written by hand.
"""
_FAMILIES = {
    Family.PRODUCT: "Products",
    Family.FUNCTION: "Functions of one element",
    Family.ARITHMETIC: "Arithmetic of two elements, with broadcasting",
    Family.COMPARISON: "Comparisons of two elements, or of an element and a number, with broadcasting: they make masks",
    Family.SELECTION: "Selections between two elements, or an element and a number, by a mask, with broadcasting",
    Family.REDUCTION: "Reductions along a dim",
    Family.NORM: "Norms along a dim",
    Family.MOVE: "Moves: elements in other places",
    Family.ACCUMULATOR: "Accumulators over the loop of a block",
}
_LETTERS = {Level.KERNEL: "K", Level.BLOCK: "B", Level.THREAD: "T"}


def page() -> str:
    """Text of docs/reference/operators.md."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD.rstrip()
    for family, title in _FAMILIES.items():
        yield f"\n## {title}\n"
        yield "| operator | operands | results | levels | attributes | field | proposed |"
        yield "|---|--:|--:|---|---|---|---|"
        yield from (_row(spec) for spec in SPECS.values() if spec.family is family)
    assert {spec.family for spec in SPECS.values()} == set(_FAMILIES), "a family without a title"
    assert {spec.lax for spec in SPECS.values()} <= set(Lax)


def _row(spec: OpSpec) -> str:
    low, high = spec.min_arity, spec.max_arity
    operands = str(low) if low == high else f"{low} to {high}"
    levels = " ".join(letter for level, letter in _LETTERS.items() if level in spec.levels)
    attributes = ", ".join([*sorted(spec.required), *(f"[{name}]" for name in sorted(spec.optional))])
    proposed = "yes" if spec.kind in SEARCHABLE else ""
    cells = (f"`{spec.kind.value}`", operands, str(spec.outputs), levels, attributes, spec.lax.value, proposed)
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.stdout.write(page())
