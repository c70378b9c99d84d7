"""Index-aware meaning of tensors: axes split into parts, and normal forms of elements over them."""
