"""Modules of torch, given or drawn at random, and comparisons of what is imported of them with what torch computes.

Tests in tests/torch use them, and the benchmarks of torch.
"""
