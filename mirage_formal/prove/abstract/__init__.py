"""Pruning by abstract expressions: can a partial µGraph still become part of the program (paper, section 4.3)?

Takes abstract expressions of a tensor and of the program. Returns whether the first is a subexpression of the second
under the axioms; unknown prunes nothing. Imports graph, logic, semantics and support.

Equations are in axioms/equivalence.smt2, what is a part of what in axioms/subexpression.smt2. z3 reads both. The
engines prune by code that is derived from them by hand, which z3 audits in every run: for equations
``normal_form.py``, ``certifying_normalizer.py`` and search/guided/algebra, for parts ``subexpression_oracle.py``
(docs/howto/axiom.md).
"""
