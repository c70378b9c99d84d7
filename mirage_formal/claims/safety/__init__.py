"""No thread of a kernel touches what it must not, and none races another."""
