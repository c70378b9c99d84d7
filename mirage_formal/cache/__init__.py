"""Directory of everything that is kept between processes, one mechanism for all kinds of entries (docs/store.md)."""
