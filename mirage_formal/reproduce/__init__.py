"""Reproduction of the reference system's published search statistics: ``python -m mirage_formal.reproduce``."""
