"""From a µGraph to CUDA: stable form, plan, Program, text, cost.

Takes a proved µGraph and a target. Returns Programs, CUDA text, launches and cost estimates. Imports graph, logic,
prove, records, rewrite, semantics and support.

What a function of one element is in CUDA stands in gpu/include/mirage_formal/device.cuh. The coefficients of the cost
model stand with the figures of each GPU, in gpu/targets.
"""
