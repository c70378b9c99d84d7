"""Whether an accepted proof says something true: against another proof, or line by line in numpy.

Values of the kernel's operator terms and polynomials are computed from their meaning alone, by slow evaluators.
"""

from __future__ import annotations

import cmath
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mirage_formal.check.proof.elaborate import elaborate
from mirage_formal.check.proof.laws import check_lemma
from mirage_formal.check.proof.operator_terms import Terms
from mirage_formal.check.proof.parser import Reader, parse_integer
from mirage_formal.check.proof.replay import replay
from mirage_formal.check.proof.ring import Index, Poly, ProofError, Ring
from mirage_formal.check.proof.tensor_steps import TensorReplay
from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.ops import OpKind
from mirage_formal.graph.types import DType
from mirage_formal.semantics.function_table import round_to_bfloat16
from tests.kit.graphs import function_values
from tests.kit.graphs.random_graphs import with_masks
from tests.kit.proofs.proof_edits import Normal, Proof

Env = dict[int, int]  # numbers that digits stand for
#: Nearer to 0 is 0: what rounding leaves of equal terms.
TINY = 1e-12


def at(index: Index, env: Env) -> int:
    """The number that an index stands for."""
    return index[0] + sum(stride * env[digit] for digit, stride in index[1])


def replayed(program: KernelGraph, candidate: KernelGraph, tables: Mapping[str, Any]) -> TensorReplay:
    """The steps of a proof, after its lemmas."""
    terms = Terms()
    graphs, atoms, signed = elaborate(terms, (program, candidate), tables["atoms"])
    reader = Reader(Ring(tuple(tables["digits"]), tuple(tables["bases"])))
    sources = [terms.input(i, x.tensor.shape) for i, x in enumerate(program.inputs)]
    sources += [graphs[parse_integer(graph, 0, 1)].piece(*place) for graph, *place in atoms]
    reader.ring.signed.update(signed)
    reader.ring.masks.update(i for i, x in enumerate(program.inputs) if x.tensor.dtype is DType.BOOL)
    reader.ring.undefined.update(i for i, source in enumerate(sources) if not terms.known[source][0])
    for raw in tables["factors"]:
        reader.entry(raw, tuple(terms.shapes[source] for source in sources))
    for number, raw in enumerate(tables["lemmas"]):
        check_lemma(reader, number, raw)
    steps = TensorReplay(reader, terms, sources)
    for raw in tables["steps"]:
        steps.step(raw)
    return steps


class Values:
    """Evaluates polynomials on arrays; a half power is a power of the principal root, imaginary for negatives."""

    def __init__(self, ring: Ring, arrays: Sequence[NDArray[Any]]) -> None:
        self.ring, self.arrays = ring, arrays
        self.known: dict[Any, Any] = {}

    def poly(self, poly: Poly, env: Env) -> Any:
        return sum(
            (float(coef) * math.prod((cmath.sqrt(self.factor(f, env)) ** e for f, e in mono), start=1 + 0j))
            for mono, coef in poly.items()
        )

    def over(self, digits: Iterable[int], env: Env) -> Iterator[Env]:
        order = sorted(digits)
        for values in product(*(range(self.ring.extents[d]) for d in order)):
            yield {**env, **dict(zip(order, values, strict=True))}

    def factor(self, f: int, env: Env) -> Any:
        key = (f, tuple((d, env[d]) for d in sorted(self.ring.free[f])))
        if key not in self.known:
            self.known[key] = self._factor(f, env)
        return self.known[key]

    def _factor(self, f: int, env: Env) -> Any:  # noqa: C901 (one row per kind)
        payload = self.ring.payloads[f]
        match self.ring.kinds[f]:
            case "in":
                return complex(self.arrays[payload[0]][tuple(at(index, env) for index in payload[1])])
            case "sum":
                return sum(self.poly({payload[1]: 1}, inner) for inner in self.over(payload[0], env))
            case "max":
                return max(self.poly(dict(payload[1]), inner).real for inner in self.over(payload[0], env))
            case "pmax":
                return self.prefix(payload, env, at(payload[0], env))
            case "carry":
                t = at(payload[0], env)
                return math.exp(self.prefix(payload, env, t - 1) - self.prefix(payload, env, t)) if t else 0
            case "exp":
                return cmath.exp(self.poly(dict(payload), env))
            case "pow":
                return self.poly(dict(payload), env)
            case "top":
                return max(self.poly(dict(key), env).real for key in payload)
            case "surd":
                return payload
            case "keep":
                mask, value = payload
                return self.poly(dict(value), env) if abs(self.poly(dict(mask), env)) > 0.5 else 0
        argument = self.poly(dict(payload[1]), env).real
        match payload[0]:
            case "log":
                return math.log(abs(argument)) if argument else math.nan
            case "negative":
                return float(argument < -TINY)
            case "zero":
                return float(abs(argument) < TINY)
            case "inv0":
                return 0 if abs(argument) < TINY else 1 / argument
            case "round_float16":
                with np.errstate(over="ignore"):
                    return float(np.float16(argument))
            case "round_bfloat16":
                return float(round_to_bfloat16(np, np.array(argument)))
            case name:
                return function_values.value(OpKind(name), argument)

    def prefix(self, payload: Any, env: Env, t: int) -> float:
        _, u, digits, body = payload
        inside = (inner for inner in self.over({u, *digits}, env) if inner[u] <= t)
        return max(self.poly(dict(body), inner).real for inner in inside)


class Numbers:
    """Operator terms as arrays, written from their description alone."""

    def __init__(self, terms: Terms, inputs: Sequence[NDArray[Any]]) -> None:
        self.keys: dict[int, Any] = {number: key for key, number in terms._ids.items()}
        self.inputs = inputs
        self.known: dict[int, NDArray[Any]] = {}

    def __call__(self, number: int) -> NDArray[Any]:
        if number not in self.known:
            self.known[number] = self.make(*self.keys[number])
        return self.known[number]

    def make(self, kind: str, *rest: Any) -> NDArray[Any]:  # noqa: C901 (one row per term)
        if kind == "input":
            return self.inputs[rest[0]]
        if kind == "unary":
            x = self(rest[1])
            functions: dict[str, Callable[[], NDArray[Any]]] = {
                "exp": lambda: np.exp(x),
                "sqrt": lambda: np.sqrt(x),
                "square": lambda: x**2,
                "sigmoid": lambda: 1 / (1 + np.exp(-x)),
                "log": lambda: np.log(x),
                "round_float16": lambda: x.astype(np.float16).astype(float),
                "round_bfloat16": lambda: round_to_bfloat16(np, x),
            }
            return functions.get(rest[0], lambda: function_values.values(OpKind(rest[0]), x))()
        if kind == "binary":
            return self.pair(rest[0], self(rest[1]), self(rest[2]))
        if kind == "concat":
            return np.concatenate([self(part) for part in rest[0]], rest[1])
        x = self(rest[0])
        match kind:
            case "matmul":
                return np.matmul(x, self(rest[1]))
            case "scale":
                return x * float(rest[1]) if rest[1] else np.zeros_like(x)
            case "offset":
                return x + float(rest[1])
            case "sum":
                axis, kept = rest[1:]
                parts = [x.take(range(i, i + kept), axis) for i in range(0, x.shape[axis], kept)]
                return np.asarray(sum(parts))
            case "max":
                return x.max(rest[1], keepdims=True)
            case "running_max":
                return self.running(x, rest[1])
            case "carry":
                m = self.running(x, rest[1])
                steps = [np.exp(m[:, :, :, i - 1] - m[:, :, :, i]) for i in range(1, m.shape[3])]
                return np.stack([0 * m[:, :, :, 0], *steps], 3)
            case "rescaled":
                f, state = self(rest[1]), 0
                for i in range(x.shape[3]):
                    state = state * f[:, :, :, i] + x[:, :, :, i]
                return np.expand_dims(state, 3)
            case "reshape":
                return x.reshape(rest[1])
            case "transpose":
                return x.transpose(rest[1])
            case "repeat":
                return np.repeat(x, rest[2], rest[1])
            case "slice":
                return x.take(range(rest[2], rest[2] + rest[3]), rest[1])
        raise AssertionError(kind)

    @staticmethod
    def pair(kind: str, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        match kind:
            case "select":
                return np.where(a != 0, b, 0.0)
            case "div_no_nan":
                return np.where(b == 0, 0.0, a / np.where(b == 0, 1.0, b))
            case "eq" | "lt" | "le":
                return {"eq": np.equal, "lt": np.less, "le": np.less_equal}[kind](a, b).astype(float)
        return {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum}[kind](a, b)

    @staticmethod
    def running(x: NDArray[Any], axis: int) -> NDArray[Any]:
        m = x.max(axis, keepdims=True)
        return np.stack([m[:, :, :, : i + 1].max(3) for i in range(m.shape[3])], 3)


#: A name, the program and the candidate.
Pair = tuple[str, KernelGraph, KernelGraph]


def accepts(pair: Pair, proof: Proof | str) -> bool:
    try:
        replay(pair[1], pair[2], proof if isinstance(proof, str) else json.dumps(proof))
    except ProofError:
        return False
    return True


def lines_are_true(pair: Pair, proof: Proof) -> bool:
    """Whether each tensor's element is what its operator term computes, at random inputs and a few positions.

    Inputs are positive, and negative too where some element has no value at positive ones.
    """
    steps = replayed(*pair[1:], proof)
    numbers = np.random.default_rng(1)
    drawn = [numbers.uniform(0.3, 1.4, x.tensor.shape) for x in pair[1].inputs]
    for sign in (1, -1):
        wanted = Numbers(steps.terms, with_masks(pair[1], [sign * array for array in drawn]))
        with np.errstate(all="ignore"):
            arrays = [wanted(tensor.term) for tensor in steps.tensors]
            good = _have_their_values(steps, wanted)
        if not good or not any(np.isnan(array).any() for array in arrays):
            return good
    return True


def _have_their_values(steps: TensorReplay, wanted: Numbers) -> bool:
    """Whether elements are what their terms compute, where these have values."""
    values = Values(steps.ring, [wanted(source) for source in steps.sources])
    for tensor in steps.tensors:
        array = wanted(tensor.term)
        places = [position for position in np.ndindex(array.shape) if not np.isnan(array[position])]
        for position in places[:: max(1, array.size // 5)]:
            env: dict[int, int] = {}
            for i, string in zip(position, tensor.strings, strict=True):
                for digit in reversed(string):
                    i, env[digit] = divmod(i, steps.ring.extents[digit])
            if not abs(values.poly(tensor.poly, env) - array[position]) < 1e-8 * (1 + abs(array[position])):
                return False
    return True


def kind(old: Proof, new: Proof) -> str:
    """What an accepted edit did."""
    normal = Normal()
    if normal(old) != normal(new):
        return "other lines"
    return "other order" if _multipliers(old) == _multipliers(new) else "other multiplier"


def _multipliers(proof: Proof) -> list[list[Any]]:
    return [sorted(zip(m[::2], m[1::2], strict=True)) for entry in proof["outputs"] for m in entry[2:]]
