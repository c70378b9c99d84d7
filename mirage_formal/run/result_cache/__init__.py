"""Cache of finished runs: their results as values, and their entries in the store for later calls."""
