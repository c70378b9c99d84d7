"""FlashInfer-Bench's records of programs, kernels and measurements."""
