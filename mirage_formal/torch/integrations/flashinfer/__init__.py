"""Export of programs, kernels and measurements as FlashInfer-Bench records.

Takes kernels and measurements of a run. Returns FlashInfer-Bench records. Imports codegen, graph, kernel_build,
records, run, support and torch.modules.
"""
