"""Joined launches: two graph-defined kernels of one µGraph in one launch, the second by the last blocks to arrive.

Takes two Programs and the values that they share. Returns the groups of blocks, and the CUDA C++ of the launch. Imports
codegen, codegen.planning, codegen.program, graph, records and support.
"""
