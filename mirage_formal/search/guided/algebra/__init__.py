"""The algebra of guided search: parts of axes, masks, normal forms, containment."""
