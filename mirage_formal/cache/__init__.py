"""Directory of everything that is kept between processes, one mechanism for all kinds of entries (docs/store.md).

Takes keys and values of one kind, or a directory. Returns entries that later processes read, after a check of key,
seal and digests; a lock for one writer. Imports records and support.

The store of searches is one of these kinds: ``search_store.py`` chooses its place, and ``cache_directory.py`` that of
all others.
"""
