"""Search for candidates: search spaces, preprocessing, and search engines."""
