"""Base of every other folder: errors, size limits, files, strict JSON, option checks, signals, terminal output."""
