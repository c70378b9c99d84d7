"""Plans: placements of tensors, steps of operators, their order, and the memory layout of buffers."""
