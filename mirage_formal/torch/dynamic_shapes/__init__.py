"""Dynamic shapes: one program for each bucket of lengths, in which padding behind the length has no effect.

Takes a module with extents that vary. Returns one program for each bucket of extents, and the choice between them.
Imports support, torch, torch.analysis, torch.comparison and torch.modules.
"""
