"""Search: spaces, engines, and what they offer."""
