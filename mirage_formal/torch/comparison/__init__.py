"""Comparison of imported programs and candidates with torch, in the element types of the module.

Takes an imported program and its module, or a candidate for it. Returns the largest difference between both in the
module's element types. Imports codegen, frontend, graph, semantics, support, torch and torch.modules.
"""
