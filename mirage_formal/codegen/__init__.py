"""From a µGraph to CUDA: stable form, plan, Program, text, cost.

Takes a proved µGraph and a target. Returns Programs, CUDA text, launches and cost estimates. Imports graph, logic,
prove, records, rewrite, semantics and support.
"""
