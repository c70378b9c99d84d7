"""The Program: one kernel as loops, copies, matrix products and barriers; and the plan it is lowered from.

Takes statements and index expressions that lowering makes. Returns Programs as values, with serialization and
instruction counts. Imports codegen, graph, records, semantics and support.
"""
