"""Finished searches with their evidence, kept for later processes (docs/store.md).

Takes finished searches. Returns entries that later processes recall after a check. Imports check, device, graph,
records and support.
"""
