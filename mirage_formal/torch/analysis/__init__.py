"""Analyses of torch graphs: which tensors share memory, and which operators form one program."""
