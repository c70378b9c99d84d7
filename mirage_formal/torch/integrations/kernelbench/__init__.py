"""KernelBench integration: problem files are imported, searched, rewritten and compared.

Takes a problem file of KernelBench. Returns the searched module, and its outcome. Imports api, codegen, graph,
records, support, torch, torch.integrations and torch.modules.
"""
