"""Graphs for paths on the command line, and arrays for computing their outputs.

Takes a path that a user names. Returns the graph, run or kernels that it stands for, and drawn inputs. Imports
codegen, device, frontend, graph, kernel_build, records, run and support.
"""
