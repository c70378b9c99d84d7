"""``python -m mirage_formal.frontend.mirage_api``: prints docs/mirage_api.md."""

if __name__ == "__main__":
    from mirage_formal.frontend.mirage_api.table import document

    print(document())
