"""Lowering: from plans, and from predefined operators, to Programs.

Takes a Plan. Returns a Program: loops, copies, matrix products and barriers with exact indices. Imports codegen,
codegen.program, graph and support.
"""
