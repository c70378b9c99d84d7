"""Random field elements from a seed, exactly as docs/fingerprint.md specifies them."""

from __future__ import annotations

from hashlib import sha256
from math import prod
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mirage_formal.graph.ops import KEYED, OpKind
from mirage_formal.graph.types import Shape
from mirage_formal.prove.identity_testing.modular_arithmetic import BLOCK, Modulus, Residues, to_uint64
from mirage_formal.prove.identity_testing.primes import FieldPair
from mirage_formal.prove.identity_testing.tape_evaluation import FieldPoint, HashKey
from mirage_formal.semantics.straight_line_trace import ResiduePart

#: Names the rule in records; a change of any byte of any stream needs a new name.
SCHEME: Final = "mirage_formal.fingerprint.1"

_PIECE: Final = 1 << 17
#: Elements of an input from which on two threads draw and reduce its words.
LARGE: Final = 1 << 20
#: Words that a Philox4x64 generator makes for one value of its counter.
_WORDS: Final = 4


def stream(seed: int, round_: int, name: str) -> np.random.Philox:
    """Return the Philox4x64-10 stream of one name: key from SHA-256 of "scheme/seed/round/name", counter from 0."""
    digest = sha256(f"{SCHEME}/{seed}/{round_}/{name}".encode()).digest()
    return np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8"))


def input_name(index: int, part: ResiduePart, attempt: int) -> str:
    """Return the name of the stream that gives one part of one input; another attempt is another stream."""
    return f"input/{index}/{part.letter}/{attempt}"


def input_residues(source: np.random.Philox, shape: Shape, m: int) -> Residues:
    """Return all elements of one part of one input, row-major: one 64-bit word each, reduced modulo ``m``.

    The distance from uniform is at most m / 2^64 per element.

    Args:
        source: ``stream`` of the input's name.
        shape: Shape of the input.
        m: The modulus, below 2^31.

    Returns:
        float64, the form in which matrix products read it.
    """
    count, modulus = prod(shape), Modulus(m)
    out = np.empty(count, dtype=np.float64)
    if count < LARGE:
        _draw_residues(source, modulus, out)
        return out.reshape(shape)
    from concurrent.futures import ThreadPoolExecutor  # small programs do without it

    middle = count // 2 // _WORDS * _WORDS
    rest = np.random.Philox()
    rest.state = source.state
    rest.advance(middle // _WORDS)
    with ThreadPoolExecutor(1) as other:
        drawn = other.submit(_draw_residues, rest, modulus, out[middle:])
        _draw_residues(source, modulus, out[:middle])
        drawn.result()
    return out.reshape(shape)


def _draw_residues(source: np.random.Philox, modulus: Modulus, out: Residues) -> None:
    """Write the next residues of a stream to an array, piece by piece, so that the words never leave the cache."""
    for low in range(0, out.size, BLOCK):
        block = out[low : low + BLOCK]
        block[:] = modulus.reduced(source.random_raw(block.size))


def mask_residues(source: np.random.Philox, shape: Shape) -> Residues:
    """Return all elements of a mask, in row-major order: the lowest bit of one word each.

    Args:
        source: ``stream`` of the input's name.
        shape: Shape of the input.
    """
    return (source.random_raw(prod(shape)) & np.uint64(1)).astype(np.float64).reshape(shape)


def field_point(seed: int, round_: int, pair: FieldPair) -> FieldPoint:
    """Return omega and the keys of opaque functions for one round."""
    source = stream(seed, round_, "omega")
    omega = 1
    while omega in (0, 1):
        omega = pow(int(source.random_raw()) % pair.p, (pair.p - 1) // pair.q, pair.p)
    return FieldPoint(pair, omega, {kind: opaque_key(seed, round_, kind) for kind in KEYED})


def opaque_key(seed: int, round_: int, kind: OpKind) -> HashKey:
    """Return the two words that key one opaque function in one round."""
    first, second = stream(seed, round_, f"opaque/{kind}").random_raw(2)
    return int(first), int(second)


def draw_digest(residues: Residues) -> str:
    """Return the SHA-256 of the residues as little-endian 32-bit words in row-major order."""
    state = sha256()
    flat = np.ascontiguousarray(residues).reshape(-1)
    for low in range(0, flat.size, _PIECE):
        state.update(to_uint64(flat[low : low + _PIECE]).astype("<u4").tobytes())
    return state.hexdigest()


def collapse_mask(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask with every axis along which it is constant reduced to extent 1."""
    for axis in range(mask.ndim):
        first = mask.take([0], axis=axis)
        if bool((mask == first).all()):
            mask = first
    return mask
