"""Triton files of candidates: generated, called, and written beside a run.

Takes candidates of a run. Returns Triton files beside them, and calls of those. Imports codegen, device, graph,
kernel_build, records and support.
"""
