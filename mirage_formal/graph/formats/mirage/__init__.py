"""Reader and writer of checkpoints of the Mirage system.

Takes checkpoints of Mirage. Returns µGraphs with row-major strides, and checkpoints of ours. Imports graph,
graph.formats and support.
"""
