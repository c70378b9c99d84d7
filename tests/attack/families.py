"""All families of trials, with their shares of a campaign."""

from __future__ import annotations

from typing import Final

from tests.attack import directories, graphs, jsons, lemmas, proofs, smt
from tests.attack.trial import Family

FAMILIES: Final = (
    Family("edited proofs", 0.16, proofs.edited_proof),
    Family("edited proofs of something false", 0.12, proofs.edited_false_proof),
    Family("proofs of something else", 0.04, proofs.foreign_proof),
    Family("edited lemmas", 0.10, proofs.invented_lemma),
    Family("invented lemmas", 0.20, lemmas.from_nothing),
    Family("changed graphs under their proofs", 0.08, graphs.kept_proof),
    Family("changed graphs before verify", 0.06, graphs.verdict),
    Family("broken Programs", 0.02, graphs.broken_program),
    Family("forged run directories", 0.03, directories.forged),
    Family("hostile JSON", 0.12, jsons.text),
    Family("hostile SMT-LIB", 0.07, smt.text),
)
