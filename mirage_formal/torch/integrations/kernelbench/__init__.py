"""KernelBench integration: problem files are imported, searched, rewritten and compared."""
