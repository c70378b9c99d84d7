"""What runs have found, as values; and in the store, where later calls find it."""
