"""Check of a run's kernels: files, launches and records, without code generation.

Takes the files of built kernels, and the records of their launches. Returns findings about their digests, launches
and obligations. Imports check, check.partitioning, graph, records and support.
"""
