"""From a µGraph to one Triton file: a function for each block graph, and torch for everything else.

Takes a µGraph and launch options. Returns the text of one Triton file. Imports codegen, codegen.planning,
codegen.program, graph, semantics and support.
"""
