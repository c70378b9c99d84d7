"""Command ``python -m mirage_formal.verify PROGRAM.py GRAPH.json``; see mirage_formal.cli."""

if __name__ == "__main__":
    from mirage_formal.cli.app import verify_main

    verify_main()
