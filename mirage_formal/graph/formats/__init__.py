"""µGraphs as files: our JSON, text for people, checkpoints of Mirage."""
