"""Candidates as files of Triton: made, called, written beside a run."""
