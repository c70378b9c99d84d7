"""Command ``python -m mirage_formal``: search and check."""

if __name__ == "__main__":
    from mirage_formal.cli.app import main

    main()
