"""What is claimed of a candidate, a room for each claim, with what proves it."""
