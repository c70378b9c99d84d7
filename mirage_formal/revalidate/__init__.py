"""Kernels from µGraphs, and their evidence derived again: above the checker, the analysis and the emitter.

The package of the equality checker (``check``) imports none of these; what it says about kernels is bound to them here.
"""
