"""Graph partitioning for programs larger than one search takes: cut into subgraphs, searched, and stitched again.

Takes a program with more operators than one search takes. Returns a cover by searched subgraphs, stitched to one
graph that is proved. Imports cache, check, codegen, graph, kernel_build, records, revalidate, run, run_directory,
search, support and workers.
"""
