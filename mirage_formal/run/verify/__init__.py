"""Verification: the policy for candidates of a search, and verdicts for graphs from files."""
