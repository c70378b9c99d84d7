"""Storage locations of tensors in memory."""
