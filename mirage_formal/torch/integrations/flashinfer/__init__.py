"""Export of programs, kernels and measurements as FlashInfer-Bench records."""
