"""Graphs for paths on the command line, and arrays for computing their outputs."""
