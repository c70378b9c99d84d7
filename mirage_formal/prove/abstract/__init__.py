"""Pruning by abstract expressions: can a partial µGraph still become part of the program (paper, section 4.3)?

Takes abstract expressions of a tensor and of the program. Returns whether the first is a subexpression of the second
under the axioms; unknown prunes nothing. Imports graph, logic, semantics and support.
"""
