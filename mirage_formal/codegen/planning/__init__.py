"""Plans: placements of tensors, steps of operators, their order, and the memory layout of buffers.

Takes a block graph and a schedule. Returns a Plan: placements, steps, barriers and the layout of shared memory.
Imports codegen, codegen.program, graph and support.
"""
