"""The reference's published search statistics, measured again: ``python -m mirage_formal.reproduce``; see __main__."""
