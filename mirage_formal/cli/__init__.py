"""Command line interface.

Takes command lines and files of users. Returns text or JSON on standard output, and exit codes. Imports api,
autotune, cache, check, codegen, device, emulate, export, frontend, gpu, graph, kernel_build, partition, prove,
records, report, reproduce, revalidate, run, support, torch and workers.
"""
