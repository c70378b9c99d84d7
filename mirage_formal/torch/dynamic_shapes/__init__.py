"""Dynamic shapes: one program for each bucket of lengths, in which padding behind the length has no effect."""
