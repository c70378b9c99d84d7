"""Integrations with other projects: attention of transformers, KernelBench's problems, FlashInfer-Bench's records.

Takes problems and models of other projects. Returns their modules with proved kernels, and records in their formats.
Imports api, codegen, frontend, graph, kernel_build, records, run, support, torch and torch.modules.
"""
