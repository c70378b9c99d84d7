"""Programs for extents that vary: one for each bucket of lengths, in which positions behind the length do nothing."""
