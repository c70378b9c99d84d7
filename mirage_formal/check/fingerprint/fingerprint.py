"""Recomputation of fingerprints from their seeds, by docs/fingerprint.md, and comparison of all digests."""

from __future__ import annotations

from base64 import b64decode
from binascii import Error
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from math import prod
from typing import Any, Final, assert_never

import numpy as np
from numpy.typing import NDArray

from mirage_formal.check.abstract_interpretation import output_parts
from mirage_formal.check.fingerprint import field_interpreter
from mirage_formal.check.fingerprint.error_bound import StatedBound, check_bound
from mirage_formal.check.fingerprint.prime_field import galois_version
from mirage_formal.check.inlining import inline_threads
from mirage_formal.graph.graph import BlockOp, GraphDefined, KernelGraph, KernelOp, Op, ThreadDefined, enumerate_results
from mirage_formal.graph.ops import OPAQUE, SPECS, Family, Lax, OpKind
from mirage_formal.graph.types import DTensor, STensor
from mirage_formal.graph.verifier import block_types, kernel_types
from mirage_formal.records.fingerprint import Draw, FingerprintRecord, InputDigest, Redraw
from mirage_formal.support.errors import FormatError

SCHEME: Final = "mirage_formal.fingerprint.1"
MIN_BITS: Final = 30  # of a reported candidate's primes; searches use smaller ones for themselves
MAX_BITS: Final = 31
#: Largest number of elements of a tensor for which an answer is required (docs/fingerprint.md).
MAX_ANSWERED: Final = 1 << 25
#: Largest number of multiplications for which an answer is required; the weight of a quotient or a function of an
#: element, and of a root.
MAX_MULTIPLICATIONS: Final = 1 << 30
FUNCTION: Final = 64
ROOT: Final = 256
#: Most elements of the largest tensor of a kernel graph, and most steps of its largest loop, that are evaluated.
MAX_ELEMENTS: Final = 1 << 31
MAX_LOOP: Final = 1 << 16
MAX_BLOCKS: Final = 1 << 22
_PARTS: Final = {"p": field_interpreter.P, "q": field_interpreter.Q}
_PIECE: Final = 1 << 20
#: Reason why no bound applies, which abstract expressions do not show.
_MASKS: Final = "masks have two values: outside the theorem"
_ZERO_QUOTIENT: Final = "a quotient that is 0 where its divisor is 0 is outside the theorem"


def check_fingerprint(program: KernelGraph, candidate: KernelGraph, record: FingerprintRecord) -> str | None:
    """Establish a fingerprint again: program and candidate agree at points that the seed gives.

    Sound: every input element is the one that the seed's stream gives, drawn again only where one of the graphs had no
    value, and both graphs are evaluated here, by a reading that shares no code with the one that wrote the record, in
    arrays of galois. One without an answer shows nothing, and is let through only where a reason for that is found
    here.

    Returns:
        The version of the galois that evaluated the graphs; None if no point was evaluated.

    Raises:
        FormatError: Something in the record is not so; says what was expected and what was got.
        Undefined: A graph has no value at a point where the record says it has.
    """
    _expect("scheme", SCHEME, record.scheme)
    if record.verdict == "different":
        raise FormatError("expected a fingerprint that is probable or unknown, got one that refutes")
    _expect("a reason if there is no answer", record.verdict == "unknown", bool(record.reason))
    _primes(record)
    if not 1 <= record.rounds <= 64:
        raise FormatError(f"expected 1 to 64 rounds, got {record.rounds}")
    many = record.rounds if record.verdict == "probable" else min(len(record.draws), record.rounds - 1)
    _expect("rounds drawn", list(range(many)), [draw.round for draw in record.draws])
    if record.lax == "none":
        _check_no_picture(program, candidate, record)
        return None
    for graph in (program, candidate):
        _expect_bounded_size(graph)
    _expect(
        "inputs that are masks",
        *([_is_mask(graph, i) for i in range(len(graph.inputs))] for graph in (program, candidate)),
    )
    matter = [_operators(graph) for graph in (program, candidate)]
    widest = max((SPECS[op.kind].lax for ops in matter for op in ops), key=list(Lax).index, default=Lax.LINEAR)
    _expect("lax", widest.value, record.lax)
    loose = any(op.kind in (OpKind.CONCAT, OpKind.PAD) for ops in matter for op in ops)
    outside = [_ZERO_QUOTIENT for ops in matter for op in ops if op.kind is OpKind.DIV_NO_NAN]
    outside += [
        _MASKS for index, _ in _read_input_parts(program) | _read_input_parts(candidate) if _is_mask(program, index)
    ]
    stated = StatedBound(record.bound_log2, record.bound_reason, loose)
    primes = (record.p, record.q)
    check_bound(output_parts(program), output_parts(candidate), primes, record.rounds, stated, outside)
    keyed: set[OpKind] = {field_interpreter.function_key(op.kind) for ops in matter for op in ops if op.kind in OPAQUE}
    for draw in record.draws:
        _check_draw(program, candidate, record, draw, keyed)
    if record.verdict == "unknown":
        _check_no_point(program, candidate, record, keyed)
    return galois_version()


def _is_mask(graph: KernelGraph, index: int) -> bool:
    return not graph.inputs[index].tensor.dtype.floating


def _check_no_picture(program: KernelGraph, candidate: KernelGraph, record: FingerprintRecord) -> None:
    """Check a record without an answer: an operator has no meaning in the fields, or a tensor is too large.

    Raises:
        FormatError: An answer was possible.
    """
    _expect(
        "verdict, bound and rounds without a picture",
        ("unknown", None, "", ()),
        (record.verdict, record.bound_log2, record.bound_reason, record.draws),
    )
    for graph in (program, candidate):
        try:
            field_interpreter.parts_to_evaluate(graph)
        except FormatError:
            return
    sizes = [_sizes(graph) for graph in (program, candidate)]
    largest, many = max(one for one, _ in sizes), max(one for _, one in sizes)
    if largest <= MAX_ANSWERED and many <= MAX_MULTIPLICATIONS:
        few = f"{largest} elements and {many} multiplications are few"
        raise FormatError(f"expected a fingerprint: every operator has a picture and {few}, got none")


def _check_no_point(
    program: KernelGraph, candidate: KernelGraph, record: FingerprintRecord, keyed: set[OpKind]
) -> None:
    """Check a record without an answer because no point was found at which both graphs have a value.

    Sound: the seed's first point of that round is one where a graph has none. That drawing again did not help is what
    the author says.

    Raises:
        FormatError: Both have a value there.
    """
    number = len(record.draws)
    blank = Draw(number, 0, {}, (), (), (), ())
    fault = _undefined_reason((program, candidate), _point(record, number, keyed), _RoundInputs(program, record, blank))
    if fault == _BOTH:
        raise FormatError(f"round {number}: expected a fingerprint, got none although {fault}")


def _sizes(graph: KernelGraph) -> tuple[int, int]:
    """Return lower bounds of the elements of the largest tensor, and of the multiplications of all blocks together."""
    types = kernel_types(graph)
    found = [tensor.elements for tensor in types]
    many = sum(_multiplications(op, first, types) for first, op in enumerate_results(len(graph.inputs), graph.ops))
    for op in graph.ops:
        if isinstance(op, GraphDefined):
            block, times = op.graph, op.graph.blocks * op.graph.forloop_range
            tiles = block_types(block, tuple(types[i] for i in op.operands))
            found += [tile.elements * times for tile in tiles]
            own = (
                _multiplications(inner, first, tiles)
                for first, inner in enumerate_results(len(block.inputs), block.ops)
            )
            many += times * sum(own)
    return max(found), many


def _multiplications(op: KernelOp | BlockOp, first: int, types: Sequence[DTensor] | Sequence[STensor]) -> int:
    """Return the multiplications of an operator, given its first result; thread graphs have no products."""
    elements = types[first].elements
    match op:
        case Op(kind=OpKind.MATMUL):
            return elements * types[op.operands[0]].shape[-1]
        case Op():
            dim = op.attrs.dim if SPECS[op.kind].family is Family.NORM else None
            return _count_functions(op, elements, elements if dim is None else elements // types[first].shape[dim])
        case ThreadDefined():
            return sum(_count_functions(inner, elements, elements) for inner in op.graph.ops)
    return 0


def _count_functions(op: Op, elements: int, rows: int) -> int:
    """Return the number of quotients, functions and roots of an operator; none has more than two for an element."""
    match SPECS[op.kind].lax:
        case Lax.DIVISION | Lax.EXPONENTIAL | Lax.OPAQUE:
            return 2 * FUNCTION * elements
        case Lax.ROOT:
            return ROOT * rows + FUNCTION * elements
        case Lax.LINEAR | Lax.NONE:
            return 0
        case lax:
            assert_never(lax)


def _expect(what: str, expected: object, got: object) -> None:
    if expected != got:
        raise FormatError(f"{what}: expected {str(expected)[:200]}, got {str(got)[:200]}")


def _expect_bounded_size(graph: KernelGraph) -> None:
    """Refuse graphs whose evaluation would exhaust the machine."""
    largest = max(tensor.elements for tensor in kernel_types(graph))
    blocks = [op.graph for op in graph.ops if isinstance(op, GraphDefined)]
    loops = max((block.forloop_range for block in blocks), default=1)
    grids = max((block.blocks for block in blocks), default=1)
    for what, most, got in (
        ("elements in a tensor", MAX_ELEMENTS, largest),
        ("loop iterations", MAX_LOOP, loops),
        ("blocks", MAX_BLOCKS, grids),
    ):
        if got > most:
            raise FormatError(f"expected at most {most} {what}, got {got}")


def _primes(record: FingerprintRecord) -> None:
    p, q = record.p, record.q
    if not MIN_BITS <= record.prime_bits <= MAX_BITS:
        raise FormatError(f"prime_bits: expected {MIN_BITS} to {MAX_BITS}, got {record.prime_bits}")
    _expect("bits of p", record.prime_bits, p.bit_length())
    if not (is_prime(p) and is_prime(q) and (p - 1) % q == 0 and p % 4 == 3 and q % 4 == 3):
        raise FormatError(f"expected primes 3 modulo 4 with q | p - 1, got p = {p}, q = {q}")
    _expect("p and q", _largest_pair(record.prime_bits), (p, q))


def is_prime(n: int) -> bool:
    """Return whether n is prime, by sympy: an implementation independent of the one that found the primes."""
    from sympy import isprime  # half of the time that it takes to load the checker; proofs alone do not need it

    return bool(isprime(n))


@lru_cache(maxsize=4)
def _largest_pair(bits: int) -> tuple[int, int]:
    """Return the largest p = 2q + 1 below 2^bits with q = -1 modulo 4 * 2 * 3 * 5 * 7 * 11 * 13."""
    step = 840 * 143
    q = (1 << (bits - 1)) - 1
    q -= (q + 1) % step
    while not (is_prime(q) and is_prime(2 * q + 1)):
        q -= step
    return 2 * q + 1, q


def _operators(graph: KernelGraph) -> list[Op]:
    """Return the operators on which an output's value depends, with thread graphs inlined."""
    kernel, blocks = field_interpreter.parts_to_evaluate(graph)
    found: list[Op] = []
    number = len(graph.inputs)
    for index, op in enumerate(graph.ops):
        if isinstance(op, GraphDefined):
            _, inner, _ = inline_threads(op.graph)
            rows = zip(inner, blocks[index][len(op.graph.inputs) :], strict=True)
            found += [o for o, parts in rows if parts and o.kind is not OpKind.ACCUM_MAX]  # an identity, as LAX here
        elif kernel[number]:
            found.append(op)
        number += op.results
    return found


# --- one round -----------------------------------------------------------------------------------------------------


def _stream(seed: int, round_: int, name: str) -> np.random.Philox:
    key = sha256(f"{SCHEME}/{seed}/{round_}/{name}".encode()).digest()[:16]
    return np.random.Philox(key=np.frombuffer(key, dtype="<u8"))


class _RoundInputs:
    """The inputs of a round: drawn from the seed, with redraws applied one attempt at a time."""

    def __init__(self, program: KernelGraph, record: FingerprintRecord, draw: Draw) -> None:
        self.shapes = [given.tensor.shape for given in program.inputs]
        self.masks = {index for index in range(len(program.inputs)) if _is_mask(program, index)}
        self.record = record
        self.draw = draw
        self.attempt = 0
        self.known: dict[tuple[int, int], NDArray[Any]] = {}

    def __call__(self, index: int, part: int) -> NDArray[Any]:
        part = field_interpreter.P if index in self.masks else part  # the same numbers in both fields
        if (index, part) not in self.known:
            value = self._drawn(index, part, 0)
            for entry in self.draw.redraws:
                if (entry.input, _PARTS[entry.field]) == (index, part) and entry.attempt <= self.attempt:
                    value = np.where(_mask(entry, self.shapes[index]), self._drawn(index, part, entry.attempt), value)
            self.known[index, part] = value
        return self.known[index, part]

    def up_to(self, attempt: int) -> None:
        """Set the inputs to their state after this number of redraws."""
        changed = [e for e in self.draw.redraws if min(attempt, self.attempt) < e.attempt <= max(attempt, self.attempt)]
        self.attempt = attempt
        for entry in changed:
            self.known.pop((entry.input, _PARTS[entry.field]), None)

    def _drawn(self, index: int, part: int, attempt: int) -> NDArray[Any]:
        m = 2 if index in self.masks else self.record.q if part else self.record.p
        name = f"input/{index}/{'pq'[part]}/{attempt}"
        return _drawn_words((self.record.seed, self.draw.round), name, m, self.shapes[index])


_DRAWN: dict[tuple[object, ...], NDArray[Any]] = {}


def _drawn_words(at: tuple[int, int], name: str, m: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array drawn below ``m`` for a seed and round, cached because candidates of one run share their inputs.

    The cache holds first draws of one seed and round: about as much as one candidate's check holds.
    """
    key = (at, name, m, shape)
    if key in _DRAWN:
        return _DRAWN[key]
    words = np.asarray(_stream(*at, name).random_raw(prod(shape)) % np.uint64(m)).astype(np.uint32).reshape(shape)
    words.flags.writeable = False
    if name.endswith("/0"):
        if any(other[0] != at for other in _DRAWN):
            _DRAWN.clear()
        _DRAWN[key] = words
    return words


def _mask(entry: Redraw, shape: Sequence[int]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    where = f"redraw {entry.attempt} of input {entry.input}"
    if len(entry.shape) != len(shape) or any(n not in (1, full) for n, full in zip(entry.shape, shape, strict=True)):
        raise FormatError(f"{where}: expected a mask that spans {list(shape)}, got {list(entry.shape)}")
    try:
        data = b64decode(entry.mask, validate=True)
    except Error as error:
        raise FormatError(f"{where}: expected base64: {error}") from None
    count = prod(entry.shape)
    _expect(f"{where}: bytes of the mask", (count + 7) // 8, len(data))
    bits = np.unpackbits(np.frombuffer(data, dtype=np.uint8))
    if bits[count:].any():
        raise FormatError(f"{where}: expected a mask of {count} bits padded with zeros, got other padding")
    return bits[:count].reshape(entry.shape).astype(np.bool_)


def _digest(value: NDArray[Any]) -> str:
    state = sha256()
    flat = np.ascontiguousarray(value).reshape(-1)
    for start in range(0, flat.size, _PIECE):
        state.update(flat[start : start + _PIECE].astype("<u4").tobytes())
    return state.hexdigest()


def _check_draw(
    program: KernelGraph, candidate: KernelGraph, record: FingerprintRecord, draw: Draw, keyed: set[OpKind]
) -> None:
    where = f"round {draw.round}"
    point = _point(record, draw.round, keyed)
    _expect(f"{where}: omega", point.omega, draw.omega)
    _expect(f"{where}: opaque keys", {kind.value: point.keys[kind] for kind in sorted(keyed)}, draw.opaque_keys)
    inputs = _RoundInputs(program, record, draw)
    read = sorted(_read_input_parts(program) | _read_input_parts(candidate))
    _check_redraws((program, candidate), record, draw, inputs, point, read)
    given = tuple(InputDigest(index, "q" if part else "p", _digest(inputs(index, part))) for index, part in read)
    for expected, got in zip(given, draw.inputs, strict=False):
        _expect(f"{where}: input {expected.input} in Z_{expected.field}", expected, got)
    _expect(f"{where}: inputs read", len(given), len(draw.inputs))
    outputs = _program_outputs(program, point, inputs, given)
    _expect(f"{where}: outputs of the program", outputs, draw.expected)
    _expect(
        f"{where}: outputs of the candidate",
        tuple(_digest(y) for y in field_interpreter.evaluate_steps(candidate, point, inputs)),
        draw.got,
    )
    _expect(f"{where}: candidate and program", draw.expected, draw.got)


def _point(record: FingerprintRecord, number: int, keyed: set[OpKind]) -> field_interpreter.RandomPoint:
    """Return the random point of a round, as the seed gives it."""
    source = _stream(record.seed, number, "omega")
    omega = 1
    while omega in (0, 1):
        omega = pow(int(source.random_raw()) % record.p, (record.p - 1) // record.q, record.p)
    if pow(omega, record.q, record.p) != 1:
        raise FormatError(f"round {number}: expected omega of order q, got {omega}")
    drawn = {kind: _stream(record.seed, number, f"opaque/{kind.value}").random_raw(2) for kind in keyed}
    keys = {kind: (int(pair[0]), int(pair[1])) for kind, pair in drawn.items()}
    return field_interpreter.RandomPoint(record.p, record.q, omega, keys)


def random_point(
    program: KernelGraph, record: FingerprintRecord
) -> tuple[field_interpreter.RandomPoint, field_interpreter.Source]:
    """Return the random point of a record's first round, with the keys of all functions, and its inputs.

    Args:
        program: The program.
        record: A record of it with one round or more.
    """
    draw = record.draws[0]
    inputs = _RoundInputs(program, record, draw)
    inputs.up_to(max((entry.attempt for entry in draw.redraws), default=0))
    return _point(record, draw.round, {field_interpreter.function_key(kind) for kind in OPAQUE}), inputs


_KNOWN: dict[tuple[object, ...], tuple[str, ...]] = {}
_KNOWN_REASONS: dict[tuple[object, ...], str | None] = {}
_MOST_REASONS: Final = 64


def _point_key(point: field_interpreter.RandomPoint) -> tuple[object, ...]:
    """Return the values of a random point as part of a cache key."""
    return point.p, point.q, point.omega, tuple(sorted(point.keys.items()))


def _program_outputs(
    program: KernelGraph, point: field_interpreter.RandomPoint, inputs: _RoundInputs, given: tuple[InputDigest, ...]
) -> tuple[str, ...]:
    """Return digests of a program's outputs, cached because candidates of one run share them for equal inputs."""
    key = (program, *_point_key(point), given)
    if key not in _KNOWN:
        _KNOWN.clear()
        _KNOWN[key] = tuple(_digest(value) for value in field_interpreter.evaluate_steps(program, point, inputs))
    return _KNOWN[key]


def _read_input_parts(graph: KernelGraph) -> set[tuple[int, int]]:
    """Return the input parts on which an output depends."""
    kernel, _ = field_interpreter.parts_to_evaluate(graph)
    return {
        (index, field_interpreter.P if _is_mask(graph, index) else part)
        for index in range(len(graph.inputs))
        for part in kernel[index]
    }


def _check_redraws(
    graphs: tuple[KernelGraph, KernelGraph],
    record: FingerprintRecord,
    draw: Draw,
    inputs: _RoundInputs,
    point: field_interpreter.RandomPoint,
    read: list[tuple[int, int]],
) -> None:
    """Check that inputs were drawn again only after one of the graphs had no value, and for the stated cause."""
    attempts = sorted({entry.attempt for entry in draw.redraws})
    _expect("redraws", list(range(1, len(attempts) + 1)), attempts)
    _expect("order of redraws", sorted(e.attempt for e in draw.redraws), [e.attempt for e in draw.redraws])
    if len(attempts) > record.attempts:
        raise FormatError(f"expected at most {record.attempts} redraws, got {len(attempts)}")
    for entry in draw.redraws:
        if entry.field not in _PARTS or (entry.input, _PARTS[entry.field]) not in read:
            raise FormatError(f"redraw {entry.attempt}: input {entry.input} in Z_{entry.field} is not read")
    for attempt in attempts:
        inputs.up_to(attempt - 1)
        cause = _undefined_reason(graphs, point, inputs)
        for entry in draw.redraws:
            if entry.attempt == attempt:
                _expect(f"redraw {attempt}: cause", cause, entry.cause)
    inputs.up_to(len(attempts))


def _undefined_reason(
    graphs: tuple[KernelGraph, KernelGraph], point: field_interpreter.RandomPoint, inputs: _RoundInputs
) -> str:
    """Return the reason why one of the graphs has no value at these inputs, or that both have one.

    The program's reason is cached because candidates of one run share it.
    """
    program, candidate = graphs
    redrawn = tuple(entry for entry in inputs.draw.redraws if entry.attempt <= inputs.attempt)
    key = (program, *_point_key(point), inputs.record.seed, inputs.draw.round, redrawn)
    if key not in _KNOWN_REASONS:
        if len(_KNOWN_REASONS) >= _MOST_REASONS:
            _KNOWN_REASONS.clear()
        _KNOWN_REASONS[key] = _reason_of(program, point, inputs)
    reason = _KNOWN_REASONS[key]
    if reason is None:
        reason = _reason_of(candidate, point, inputs)
    return _BOTH if reason is None else reason


def _reason_of(graph: KernelGraph, point: field_interpreter.RandomPoint, inputs: _RoundInputs) -> str | None:
    """Return the reason why a graph has no value at these inputs, or None if it has one."""
    try:
        field_interpreter.evaluate_steps(graph, point, inputs)
    except field_interpreter.UndefinedValueError as error:
        return str(error)
    return None


_BOTH: Final = "both graphs have a value: nothing to draw again"
