"""Integrations with other projects: attention of transformers, KernelBench's problems, FlashInfer-Bench's records."""
