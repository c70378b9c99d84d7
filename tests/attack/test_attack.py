"""An adversary against the checker: a seeded 1 % of the trials of ``make fuzz``, and what shows that it is awake."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mirage_formal.check.proof import index_substitution, laws, tensor_steps
from tests.attack import lemmas, proofs
from tests.attack.families import FAMILIES
from tests.attack.trial import Family, campaign
from tests.kit.paths import REPOSITORY
from tests.kit.sampling import number

ROOT = REPOSITORY
TRIALS = number(300, 1500)


def test_the_shares_add_up() -> None:
    assert sum(family.share for family in FAMILIES) == pytest.approx(1)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.slow
def test_nothing_false_is_accepted_and_nothing_breaks() -> None:
    """In processes of its own, whose memory is measured."""
    command = [sys.executable, str(ROOT / "benchmarks" / "attack.py"), "--trials", str(TRIALS), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    assert ", 0 failures, " in done.stdout


def blind(monkeypatch: pytest.MonkeyPatch, module: object, words: str) -> None:
    """Make a part of the kernel not look at one thing: what is refused with these words is accepted."""
    right = module.require  # type: ignore[attr-defined]

    def need(condition: object, what: str) -> None:
        right(words in what or condition, what)

    monkeypatch.setattr(module, "require", need)


@pytest.mark.parametrize(
    ("module", "words", "seed"),
    [
        (laws, "expected fresh digits", 5),
        (laws, "expected a class to be what factor", 3),
        (laws, "to be the largest value", 3),
        (laws, "expected the polynomial to be the product", 3),
        (laws, "to be the running maximum", 2),
        (laws, "expected the square of the root", 3),
        (index_substitution, "", 3),
    ],
)
def test_the_adversary_finds_a_kernel_that_does_not_look(
    monkeypatch: pytest.MonkeyPatch, module: object, words: str, seed: int
) -> None:
    """Within 6000 trials; the seeds are those with which it takes few."""
    blind(monkeypatch, module, words)
    family = Family("lemmas", 1, lemmas.from_nothing)
    parts = (campaign(family, seed, range(first, first + 50)) for first in range(0, 6000, 50))
    assert any("WRONG ACCEPT" in failure for tally in parts for failure in tally.failures)


def test_the_adversary_finds_a_replay_that_does_not_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    blind(monkeypatch, tensor_steps, "expected equal elements")
    family = Family("proofs", 1, proofs.edited_false_proof)
    parts = (campaign(family, 3, range(first, first + 10)) for first in range(0, 300, 10))
    assert any("WRONG ACCEPT" in failure for tally in parts for failure in tally.failures)
