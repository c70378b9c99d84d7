"""Candidates whose tiles overhang their tensors: pads and slices around kernels."""
