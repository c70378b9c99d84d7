"""The fingerprint's log: deterministic, and drawn again from docs/fingerprint.md in Python integers."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib import metadata
from math import prod
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from mirage_formal.check.fingerprint.fingerprint import check_fingerprint
from mirage_formal.graph.graph import KernelGraph, Op
from mirage_formal.graph.ops import Attrs, OpKind
from mirage_formal.graph.types import DTensor, DType, Shape
from mirage_formal.graph.verdict import Probable
from mirage_formal.prove.identity_testing import draw, point
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSettings, fingerprint
from mirage_formal.prove.identity_testing.primes import field_pair
from mirage_formal.records.fingerprint import Draw, FingerprintRecord
from mirage_formal.semantics.straight_line_trace import ResiduePart
from tests.kit.graphs import reference_interpreter
from tests.kit.graphs import workloads as w
from tests.kit.graphs.reference_interpreter import Exact
from tests.kit.proofs.claims import Mask
from tests.kit.proofs.claims import program as written

K = OpKind
SMALL = FingerprintSettings(seed=5, prime_bits=20)
BIG = FingerprintSettings(seed=5, prime_bits=31)


def program(shapes: Sequence[Shape], *ops: Op, outputs: tuple[int, ...] | None = None) -> KernelGraph:
    inputs = tuple(w.tensor(f"t{i}", *shape) for i, shape in enumerate(shapes))
    return KernelGraph(inputs, ops, outputs or (len(inputs) + len(ops) - 1,))


MASKED = {"M": Mask(4, 6), "X": (4, 6), "Y": (4, 6)}
X = ((4, 6),)
XY = ((4, 6), (4, 6))


@pytest.mark.parametrize("settings", [SMALL, BIG, FingerprintSettings(seed=2**70, prime_bits=31, rounds=3)])
def test_the_same_seed_gives_the_same_log_and_another_seed_another(settings: FingerprintSettings) -> None:
    graph, candidate = w.qk_norm(b=1, m=2, d=4, n=4, e=2), w.qk_norm_one(b=1, m=2, d=4, n=4, e=2, rows=1, loop=2)
    one = fingerprint(graph, candidate, settings)
    assert one == fingerprint(graph, candidate, settings)
    assert len({d.omega for d in one.record.draws}) == len(one.record.draws) == settings.rounds
    assert len({d.expected for d in one.record.draws}) == settings.rounds
    other = fingerprint(graph, candidate, _seeded(settings))
    assert other.record.draws[0].expected != one.record.draws[0].expected


def _seeded(settings: FingerprintSettings) -> FingerprintSettings:
    return FingerprintSettings(settings.seed + 1, settings.prime_bits, settings.rounds)


PAIRS = {
    "attention": (
        w.attention(b=2, m=4, d=3, n=8, e=4),
        w.attention_split(b=2, m=4, d=3, n=8, e=4, split=2, loop=2, rows=2),
    ),
    "qk_norm": (w.qk_norm(b=1, m=4, d=4, n=8, e=3), w.qk_norm_one(b=1, m=4, d=4, n=8, e=3, rows=2, loop=2)),
    "rms_norm": (w.rmsnorm(b=3, k=8, n=6), w.rmsnorm_by_hand(b=3, k=8, n=6, grid=3, loop=2)),
    "lora": (w.lora(b=4, k=6, n=8, r=3), w.lora_fused(b=4, k=6, n=8, r=3, grid=2, loop=3, rows=2)),
    "gated_mlp": (w.gated_mlp(b=2, k=6, n=8), w.gated_mlp_fused(b=2, k=6, n=8, grid=4, loop=2)),
    "ntrans": (w.ntrans(b=4, n=6), w.ntrans_fused(b=4, n=6, grid=2)),
    "masks": (
        written(
            MASKED,
            lambda g, m, x, y: g.exp(g.select(g.lt(x, 2), y, 1)) / g.select(m, g.round_to(x, "float16"), g.sqrt(y)),
        ),
        written(
            MASKED,
            lambda g, m, x, y: (
                g.exp(g.select(g.ge(x, 2), 1, y)) / g.select(g.logical_not(m), g.sqrt(y), g.round_to(x, "float16"))
            ),
        ),
    ),
    "zeros": (
        written(MASKED, lambda g, m, x, y: g.select(g.eq(x, y), g.div_no_nan(x, g.select(m, y, 0)), x)),
        written(MASKED, lambda g, m, x, y: g.select(g.eq(y, x), g.div_no_nan(x, g.cast(m, "float16") * y), x)),
    ),
    "gelu": (program(XY, w.op(K.ADD, 0, 1), w.op(K.GELU, 2)), program(XY, w.op(K.ADD, 1, 0), w.op(K.GELU, 2))),
}


def _words(seed: int, round_: int, name: str, count: int) -> list[int]:
    key = np.frombuffer(sha256(f"mirage_formal.fingerprint.1/{seed}/{round_}/{name}".encode()).digest()[:16], "<u8")
    return [int(word) for word in np.random.Philox(key=key).random_raw(count)]


def _redrawn_inputs(
    record: FingerprintRecord, drawn: Draw, tensors: Sequence[DTensor]
) -> dict[tuple[int, str], NDArray[Any]]:
    """The inputs of one round, from the log and docs/fingerprint.md alone, as {(input, field): list of residues}."""
    found = {}
    shapes = [tensor.shape for tensor in tensors]
    masks = {number for number, tensor in enumerate(tensors) if tensor.dtype is DType.BOOL}
    for number, shape in enumerate(shapes):
        for name, prime in (("p", record.p), ("q", record.q)):
            m = 2 if number in masks else prime
            found[number, name] = np.array(
                [v % m for v in _words(record.seed, drawn.round, f"input/{number}/{name}/0", prod(shape))]
            ).reshape(shape)
    for entry in drawn.redraws:
        m = 2 if entry.input in masks else record.p if entry.field == "p" else record.q
        name = f"input/{entry.input}/{entry.field}/{entry.attempt}"
        shape = shapes[entry.input]
        fresh = np.array([v % m for v in _words(record.seed, drawn.round, name, prod(shape))]).reshape(shape)
        bits = np.unpackbits(np.frombuffer(b64decode(entry.mask), dtype=np.uint8))[: prod(entry.shape)]
        mask = np.broadcast_to(bits.astype(bool).reshape(entry.shape), shape)
        found[entry.input, entry.field] = np.where(mask, fresh, found[entry.input, entry.field])
    return found | {(number, "q"): found[number, "p"] for number in masks}


def _sha(residues: Iterable[Any]) -> str:
    return sha256(b"".join(int(v).to_bytes(4, "little") for v in residues)).hexdigest()


@pytest.mark.parametrize("name", PAIRS)
def test_the_log_can_be_drawn_again_from_the_documented_rules(name: str) -> None:
    """Everything from the log and the documentation, evaluated literally in Python integers."""
    graph, candidate = PAIRS[name]
    result = fingerprint(graph, candidate, FingerprintSettings(seed=12345, prime_bits=31, rounds=2))
    assert isinstance(result.verdict, Probable)
    record = msgspec.json.decode(msgspec.json.encode(result.record), type=FingerprintRecord)
    assert record == result.record
    assert record.scheme == "mirage_formal.fingerprint.1"
    tensors = [source.tensor for source in graph.inputs]
    for drawn in record.draws:
        h = next(v for v in _words(record.seed, drawn.round, "omega", 9) if pow(v % record.p, 2, record.p) > 1)
        assert drawn.omega == pow(h, (record.p - 1) // record.q, record.p)
        for kind, key in drawn.opaque_keys.items():
            assert list(key) == _words(record.seed, drawn.round, f"opaque/{kind}", 2)
        inputs = _redrawn_inputs(record, drawn, tensors)
        assert drawn.inputs
        for entry in drawn.inputs:
            assert entry.sha256 == _sha(inputs[entry.input, entry.field].ravel())
        keys = {OpKind(kind): key for kind, key in drawn.opaque_keys.items()}
        exact = Exact(record.p, record.q, drawn.omega, keys)
        numbers = [exact.array(inputs[i, "p"], inputs[i, "q"]) for i in range(len(tensors))]
        for side, digests in ((graph, drawn.expected), (candidate, drawn.got)):
            outputs = reference_interpreter.evaluate(side, numbers, exact)
            assert tuple(_sha(v.p for v in out.ravel()) for out in outputs) == digests
        assert drawn.expected == drawn.got


def test_only_the_parts_that_matter_are_drawn_and_logged() -> None:
    result = fingerprint(*PAIRS["attention"], BIG)
    assert [(e.input, e.field) for e in result.record.draws[0].inputs] == [(0, "q"), (1, "q"), (2, "p")]
    result = fingerprint(*PAIRS["lora"], BIG)
    assert [(e.input, e.field) for e in result.record.draws[0].inputs] == [(i, "p") for i in range(4)]


GOLDEN = [532119089, 828095662, 225378537, 294385204, 307899328, 708570572]


def test_streams_are_fixed() -> None:
    """Golden values: a change here is a change of the scheme, which needs another name."""
    pair = field_pair(31)
    x = draw.input_residues(draw.stream(7, 0, draw.input_name(1, ResiduePart.Q, 2)), (2, 3), pair.q)
    assert x.ravel().tolist() == [v % pair.q for v in _words(7, 0, "input/1/q/2", 6)]
    assert (pair.p, pair.q) == (2147024879, 1073512439)
    assert (field_pair(20).p, field_pair(20).q) == (1026479, 513239)
    assert x.ravel().tolist() == GOLDEN
    large = draw.input_residues(draw.stream(7, 0, draw.input_name(0, ResiduePart.P, 0)), (3, 100000), pair.p)
    assert large.ravel()[[0, 131071, 131072, 299999]].tolist() == [
        _words(7, 0, "input/0/p/0", 300000)[i] % pair.p for i in (0, 131071, 131072, 299999)
    ]


def test_threads_draw_and_digest_large_inputs_as_one_thread_does(monkeypatch: pytest.MonkeyPatch) -> None:
    shape, name, modulus = (33, 77), draw.input_name(0, ResiduePart.P, 0), field_pair(31).p
    one = draw.input_residues(draw.stream(7, 0, name), shape, modulus)
    alone = {name: fingerprint(*pair, BIG) for name, pair in PAIRS.items()}
    threads = list[Any]()
    submit = ThreadPoolExecutor.submit

    def noted(*given: Any) -> Any:
        threads.append(given)
        return submit(*given)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", noted)
    for module in (draw, point):
        monkeypatch.setattr(module, "LARGE", 4)
    assert (draw.input_residues(draw.stream(7, 0, name), shape, modulus) == one).all()
    assert len(threads) == 1
    assert {name: fingerprint(*pair, BIG) for name, pair in PAIRS.items()} == alone
    assert len(threads) > 2 * len(PAIRS)


def test_a_log_names_no_library_and_one_of_an_earlier_version_is_read() -> None:
    graph = program(X, w.op(K.SQUARE, 0))
    log = msgspec.json.encode(fingerprint(graph, graph, BIG).record)
    assert b"galois" not in log
    earlier = {**msgspec.json.decode(log), "confirmation": {"galois": "0.4.11", "primitive_root": 23}}
    read = msgspec.convert(earlier, FingerprintRecord)
    assert check_fingerprint(graph, graph, read) == metadata.version("galois")


def test_a_version_is_returned_only_where_galois_evaluated() -> None:
    ordered = program(X, Op(K.MAX, (0,), Attrs(dim=0)))
    record = fingerprint(ordered, ordered, BIG).record
    assert record.verdict == "unknown"
    assert check_fingerprint(ordered, ordered, record) is None
