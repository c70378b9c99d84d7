"""Storage locations of tensors in memory.

Takes a graph with views. Returns the storage of each tensor: buffer, strides, offset. Imports graph and
graph.remainder_tiles.
"""
