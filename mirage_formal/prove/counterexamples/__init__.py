"""Inputs at which two graphs differ.

Takes two graphs. Returns exact inputs at which they differ, or none found. Imports graph, semantics and support.
"""
