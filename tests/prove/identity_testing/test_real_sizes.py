"""The six workloads at their real sizes and p about 2^31: hand-written candidates agree with their programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Different, Probable
from mirage_formal.prove.identity_testing.fingerprint import FingerprintSession, FingerprintSettings
from tests.kit.graphs import workloads as w

Make = Callable[[], KernelGraph]
CASES: dict[str, tuple[Make, list[Make]]] = {
    "GQA": (w.attention, [w.attention_split, w.attention_one]),
    "QKNorm": (w.qk_norm, [w.qk_norm_one]),
    "RMSNorm": (w.rmsnorm, [w.rmsnorm_fused, w.rmsnorm_by_hand]),
    "LoRA": (w.lora, [w.lora_fused]),
    "GatedMLP": (w.gated_mlp, [w.gated_mlp_fused]),
    "nTrans": (w.ntrans, [w.ntrans_fused]),
}


@pytest.mark.parametrize("name", CASES)
def test_right_candidates_agree(name: str) -> None:
    program, candidates = CASES[name]
    session = FingerprintSession(program(), FingerprintSettings(seed=1, prime_bits=31))
    for candidate in candidates:
        assert isinstance(session.check(candidate()).verdict, Probable)


def test_one_wrong_iteration_in_a_large_sum_shows() -> None:
    """Scaled by 1/4095 where it should be 1/4096."""
    session = FingerprintSession(w.rmsnorm(n=96), FingerprintSettings(seed=1, prime_bits=31))
    wrong = w.rmsnorm_by_hand(n=96, mean_of=4095)
    assert isinstance(session.check(w.rmsnorm_by_hand(n=96)).verdict, Probable)
    assert isinstance(session.check(wrong).verdict, Different)
