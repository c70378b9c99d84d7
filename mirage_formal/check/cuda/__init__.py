"""Check of a run's kernels: files, launches and records, without code generation."""
