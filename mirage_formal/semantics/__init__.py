"""Semantics of µGraphs: an interpreter over any domain of values, and the float64 reference."""
