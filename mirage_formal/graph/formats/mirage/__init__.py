"""Checkpoints of the Mirage system, read and written."""
