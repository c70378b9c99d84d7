"""The reference system's Python interface: what of it is offered here."""
