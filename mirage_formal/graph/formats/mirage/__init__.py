"""Reader and writer of checkpoints of the Mirage system."""
