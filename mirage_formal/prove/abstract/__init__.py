"""Pruning by abstract expressions: can a partial µGraph still become part of the program (paper, section 4.3)?

Takes abstract expressions of a tensor and of the program. Returns whether the first is a subexpression of the second
under the axioms; unknown prunes nothing. Imports graph, logic, semantics and support.

The axioms are in axioms/. z3 reads them; the engines prune by code that is derived from them by hand
(``subexpression_oracle.py`` here, and search/guided/algebra), which z3 audits in every run.
"""
