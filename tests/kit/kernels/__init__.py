"""Kernels of the examples, Programs written by hand, an interpreter of Programs, and Triton files in own processes.

Tests of lowering, planning and launching use them (tests/codegen, tests/device, tests/codegen/safety, tests/run).
"""
