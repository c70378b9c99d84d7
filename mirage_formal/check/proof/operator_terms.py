"""Operator terms: a tensor as the expression of operators that computes it, hash-consed, with its shape."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from typing import Any, Final, NamedTuple

from mirage_formal.check.proof.ring import ProofError, require
from mirage_formal.graph.types import Shape, broadcast

#: Position of the loop axis of a block tensor, after grid x, y, z.
LOOP = 3
#: Known signs of all elements: unknown, nonnegative, positive; a greater number is a stronger fact.
ANY, NOT_NEGATIVE, ABOVE_ZERO = 0, 1, 2


class UninterpretedFunction(NamedTuple):
    """A function of one real number that no sum of products defines; ``ring`` has the few laws of some of them.

    Attributes:
        positive_domain: Whether it has a value only where its argument is above 0.
        nonnegative: Whether no value of it is below 0.
    """

    positive_domain: bool = False
    nonnegative: bool = False


UNINTERPRETED: Final = {
    "erf": UninterpretedFunction(),
    "relu": UninterpretedFunction(nonnegative=True),
    "log": UninterpretedFunction(positive_domain=True),
    "round_float16": UninterpretedFunction(),
    "round_bfloat16": UninterpretedFunction(),
}
#: Functions that steps of proofs apply to tensors, those with laws first.
UNARY: Final = ("exp", "sqrt", "square", "sigmoid", "gelu", *UNINTERPRETED)


class Terms:
    """Constructors of operator terms; equal terms have equal numbers. Axes count the leading axes of a block too.

    Sound: a term is the name of one tensor over the inputs. Nothing is rewritten, except that a reshape, transpose,
    repetition, slice or loop of one iteration that changes nothing is left out, and of two reshapes the first; and that
    a reshape is of the operands of an elementwise operator, if these have its shape.
    """

    def __init__(self) -> None:
        self._ids: dict[tuple[Any, ...], int] = {}
        self.shapes: list[Shape] = []
        self._keys: list[tuple[Any, ...]] = []
        self._reshapes: dict[tuple[int, Shape], int] = {}
        #: For each tensor, whether its elements have values for all inputs, and their sign.
        self.known: list[tuple[bool, int]] = []

    def _make(self, shape: Sequence[int], *key: Any) -> int:
        number = self._ids.setdefault(key, len(self.shapes))
        if number == len(self.shapes):
            self.shapes.append(tuple(shape))
            self._keys.append(key)
            self.known.append(self._definedness_and_sign(*key))
        return number

    def _definedness_and_sign(self, kind: str, *rest: Any) -> tuple[bool, int]:  # noqa: C901 (one row per term)
        """Return the definedness and sign of a term, from its operator and from those of its operands.

        Sound: a quotient has a value where its divisor is above 0, a root where its radicand is not negative, a
        logarithm where its argument is above 0, all others where their operands have; a product with 0 is 0. Signs are
        those of sums, products and largest values of reals, of roots, squares and exponentials. A mask is 0 or 1.
        """
        if kind == "input":
            return True, ANY
        name = rest[0] if kind in ("unary", "binary") else kind
        places = {"unary": rest[1:], "binary": rest[1:], "matmul": rest, "rescaled": rest, "concat": rest[0]}
        facts = [self.known[a] for a in places.get(kind, rest[:1])]
        total, signs = all(fact for fact, _ in facts), [sign for _, sign in facts]
        first, last, least, most = signs[0], signs[-1], min(signs), max(signs)
        match name:
            case "exp" | "sigmoid":
                return total, ABOVE_ZERO
            case "square":
                return total, max(first, NOT_NEGATIVE)
            case "sqrt":
                return total and first != ANY, max(first, NOT_NEGATIVE)
            case "gelu" | "sub":
                return total, ANY
            case _ if name in UNINTERPRETED:
                total = total and (first == ABOVE_ZERO or not UNINTERPRETED[name].positive_domain)
                return total, max(first, NOT_NEGATIVE) if UNINTERPRETED[name].nonnegative else ANY
            case "add":
                return total, most if least != ANY else ANY
            case "div":
                return total and last == ABOVE_ZERO, least
            case "select":
                return total, min(last, NOT_NEGATIVE)
            case "eq" | "lt" | "le" | "carry":
                return total, NOT_NEGATIVE
            case "scale":
                return (total, first if rest[1] > 0 else ANY) if rest[1] else (True, NOT_NEGATIVE)
            case "offset":
                above = ABOVE_ZERO if rest[1] > 0 and first != ANY else first
                return total, above if rest[1] >= 0 else ANY
            case "rescaled":
                return total, first if last != ANY else ANY
            case "max":
                return total, most
            case "mul" | "div_no_nan" | "matmul" | "concat" | "sum" | "running_max" | "reshape" | "transpose":
                return total, least
            case "repeat" | "slice":
                return total, least
        raise AssertionError(name)

    def replaced(self, term: int, table: dict[int, int]) -> int:
        """Return a term with terms replaced by others of their shapes; ``table`` holds what is replaced.

        Sound: an operator has one result for equal operands.
        """
        if term not in table:
            kind, *rest = self._keys[term]
            places = {"input": (), "unary": (1,), "binary": (1, 2), "matmul": (0, 1), "rescaled": (0, 1)}
            for place in places.get(kind, (0,)):
                old = rest[place]
                parts = tuple(self.replaced(part, table) for part in (old if kind == "concat" else (old,)))
                rest[place] = parts if kind == "concat" else parts[0]
            again = kind == "reshape"
            table[term] = self.reshape(*rest) if again else self._make(self.shapes[term], kind, *rest)
        return table[term]

    def input(self, number: int, shape: Shape) -> int:
        """Return the term of input ``number``."""
        return self._make(shape, "input", number)

    def unary(self, kind: str, a: int) -> int:
        """Return the term of a function in ``UNARY``."""
        return self._make(self.shapes[a], "unary", kind, a)

    def binary(self, kind: str, a: int, b: int) -> int:
        """Return add, sub, mul, div, max, select, eq, lt, le or div_no_nan; axes of extent 1 broadcast."""
        return self._make(self._joined(self.shapes[a], self.shapes[b]), "binary", kind, a, b)

    def matmul(self, a: int, b: int) -> int:
        """Contract the last axis of a with the second last of b; the axes before them broadcast."""
        require(min(len(self.shapes[a]), len(self.shapes[b])) >= 2, "matmul: expected operands of at least 2 axes")
        (*lead, rows, inner), (*other, again, columns) = self.shapes[a], self.shapes[b]
        require(inner == again, f"matmul: expected equal inner axes, got {inner} and {again}")
        return self._make((*self._joined(tuple(lead), tuple(other)), rows, columns), "matmul", a, b)

    def constant(self, kind: str, a: int, q: Fraction) -> int:
        """Return scale (times q) or offset (plus q) of a tensor."""
        return self._make(self.shapes[a], kind, a, q)

    def reduce(self, kind: str, a: int, axis: int, kept: int = 1) -> int:
        """Return sum (to ``kept`` elements), max, running_max or carry (over an axis, and over the loop so far)."""
        good = self.shapes[a][axis] % kept == 0
        require(good, f"{kind}: expected axis {axis} of {self.shapes[a]} to be a multiple of {kept}")
        kind = "max" if kind == "running_max" and self.shapes[a][LOOP] == 1 else kind
        return self._make(_at(self.shapes[a], axis, kept), kind, a, axis, kept)

    def rescaled(self, x: int, f: int) -> int:
        """Return the last state s of s = s * f + x over the loop."""
        require(len(self.shapes[x]) > LOOP, "rescaled: expected a tensor with a loop axis")
        shape = _at(self._joined(self.shapes[x], self.shapes[f]), LOOP, 1)
        once = self.shapes[x][LOOP] == self.shapes[f][LOOP] == 1
        return x if once and shape == self.shapes[x] else self._make(shape, "rescaled", x, f)

    def reshape(self, a: int, shape: Shape) -> int:
        """Return the same elements, row-major, with other axes.

        Sound: an operator on elements at equal positions gives the same for each number of a position.
        """
        require(prod(shape) == prod(self.shapes[a]), f"reshape: expected the elements of {self.shapes[a]}, got {shape}")
        if shape == self.shapes[a]:
            return a
        if (a, shape) not in self._reshapes:
            kind, *rest = self._keys[a]
            places = {"reshape": (0,), "unary": (1,), "binary": (1, 2), "scale": (0,), "offset": (0,)}.get(kind, ())
            inside = places and (kind == "reshape" or all(self.shapes[rest[i]] == self.shapes[a] for i in places))
            for place in places if inside else ():
                rest[place] = self.reshape(rest[place], shape)
            found = rest[0] if kind == "reshape" else self._make(shape, kind, *rest) if inside else -1
            self._reshapes[a, shape] = found if inside else self._make(shape, "reshape", a, shape)
        return self._reshapes[a, shape]

    def flat(self, a: int) -> int:
        """Return the same elements, row-major, with one axis."""
        return self.reshape(a, (prod(self.shapes[a]),))

    def transpose(self, a: int, perm: tuple[int, ...]) -> int:
        """Return a tensor with permuted axes: axis i of the result is axis perm[i]."""
        good = sorted(perm) == list(range(len(self.shapes[a])))
        require(good, f"transpose: expected a permutation of the axes, got {perm}")
        same = list(perm) == sorted(perm)
        return a if same else self._make([self.shapes[a][i] for i in perm], "transpose", a, perm)

    def repeat(self, a: int, axis: int, times: int) -> int:
        """Return a tensor with an axis of extent 1 repeated ``times`` times."""
        require(self.shapes[a][axis] == 1, f"repeat: expected axis {axis} of extent 1, got {self.shapes[a]}")
        return a if times == 1 else self._make(_at(self.shapes[a], axis, times), "repeat", a, axis, times)

    def slice(self, a: int, axis: int, start: int, length: int) -> int:
        """Return elements start .. start + length - 1 of an axis."""
        good = 0 <= start < start + length <= self.shapes[a][axis]
        require(good, f"slice: expected a part of axis {axis} of {self.shapes[a]}, got {start}, {length}")
        whole = length == self.shapes[a][axis]
        return a if whole else self._make(_at(self.shapes[a], axis, length), "slice", a, axis, start, length)

    def concat(self, parts: tuple[int, ...], axis: int) -> int:
        """Return the concatenation of tensors along an axis."""
        first, extent = self.shapes[parts[0]], sum(self.shapes[part][axis] for part in parts)
        good = all(_at(self.shapes[part], axis, extent) == _at(first, axis, extent) for part in parts)
        require(good, f"concat: expected shapes that differ in axis {axis} only")
        return parts[0] if len(parts) == 1 else self._make(_at(first, axis, extent), "concat", parts, axis)

    def _joined(self, a: Shape, b: Shape) -> Shape:
        found = broadcast(a, b)
        if found is None:
            raise ProofError(f"expected equal ranks with axes equal or 1, got {a} and {b}")
        return found


def _at(shape: Shape, axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])
