"""Comparison of imported programs with torch, in the element types of the module."""
