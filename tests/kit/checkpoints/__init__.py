"""Checkpoints of Mirage for tests, in the versions of that format, and an independent evaluator of such files."""
