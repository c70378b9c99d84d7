"""Analyses of torch graphs: which tensors share memory, and which operators form one program.

Takes a graph of torch.fx. Returns which tensors share memory, and which operators form one program. Imports frontend,
graph, semantics and torch.modules.
"""
