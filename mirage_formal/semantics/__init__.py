"""Semantics of a µGraph for any domain of values; and the float64 reference."""
