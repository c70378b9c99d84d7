"""Comparison of imported programs with torch, in the element types of the module.

Takes an imported program and its module. Returns the largest difference between both in the module's element types.
Imports frontend, graph, semantics, support, torch and torch.modules.
"""
