"""Torch modules whose regions are computed by operators made of candidates.

Takes a module, its regions and their candidates. Returns an optimized module that calls kernels. Imports api,
codegen, device, frontend, graph, kernel_build, partition, run, semantics, support, torch, torch.analysis,
torch.background, torch.comparison and torch.dynamic_shapes.

A region stays with torch for one of four reasons: it has no program (``torch/analysis/regions.py``), it is one operator
or no candidate was found (``region_search.py``), or torch is as fast (``profitability.py``).
"""
