"""Candidates whose remainder tiles overhang their tensors: pads and slices around kernels."""
