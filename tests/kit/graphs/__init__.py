"""Programs and µGraphs written by hand or drawn at random, mutants of them, and an independent interpreter.

Tests of every part that reads µGraphs use them: tests/graph, tests/prove, tests/check, tests/search, tests/codegen.
"""
