"""The search command without the command line library, which takes longer to load than a small program to plan.

Takes the arguments of ``python -m mirage_formal.search``. Returns an exit code. Imports api, cli, cli.graphs,
codegen, kernel_build, partition, records, run and support.
"""
