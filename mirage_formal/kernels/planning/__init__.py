"""Plans: where tensors live, how operators are computed, in which order, at which offsets."""
