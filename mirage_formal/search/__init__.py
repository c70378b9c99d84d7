"""Search for candidates: search spaces, preprocessing, and search engines.

Takes a program and a search space. Returns candidates in a deterministic order, with the reasons of what was pruned.
Imports graph, logic, prove, records, rewrite, semantics and support.
"""
