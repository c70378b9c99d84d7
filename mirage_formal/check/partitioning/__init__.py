"""Graphs in parts, and whole programs that were searched in parts."""
