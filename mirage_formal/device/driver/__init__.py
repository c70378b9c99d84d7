"""Calls of the CUDA driver that CuPy does not offer: launches with attributes, and tensor maps.

Takes launches, and addresses of tensors. Returns functions that launch, and encoded maps. Imports codegen, records and
support.
"""
