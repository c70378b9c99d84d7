"""``python -m mirage_formal.search FILE``: see mirage_formal.cli."""

if __name__ == "__main__":
    import gc
    import sys

    from mirage_formal.run.preload import start_workers_of

    gc.disable()  # loading makes no garbage; search_files enables it
    start_workers_of(sys.argv[1:])  # before the command line is loaded, which takes a quarter of what workers load
    from mirage_formal.cli.search.search_main import search_main
    from mirage_formal.support.guard import end_quickly

    end_quickly(search_main)
