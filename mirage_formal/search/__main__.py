"""``python -m mirage_formal.search FILE``: see mirage_formal.cli."""

if __name__ == "__main__":
    from mirage_formal.cli.app import search_main

    search_main()
