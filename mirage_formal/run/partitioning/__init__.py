"""Programs larger than a search takes: cut into parts and put together again."""
