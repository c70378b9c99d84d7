"""Results of a search, and lists of them."""
