"""Candidates whose remainder tiles overhang their tensors: pads and slices around kernels.

Takes a graph whose tiles overhang its tensors. Returns the graph with pads and slices around its kernels. Imports
graph.
"""
