"""Triton files of candidates: generated, called, and written beside a run."""
