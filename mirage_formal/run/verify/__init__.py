"""Verdicts: which candidates may be returned, and verdicts for graphs from anywhere."""
