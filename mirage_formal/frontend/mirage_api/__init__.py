"""Table of the reference system's Python interface, with the support for each name."""
