"""From a µGraph to one Triton file: a function for each block graph, and torch for everything else.

Takes a µGraph and launch options. Returns the text of one Triton file, and the bounds of its loads and stores. Imports
codegen, codegen.planning, codegen.program, codegen.safety, graph, semantics and support.
"""
