"""Random programs, random graphs, and right and wrong rewrites of them, each from a seed.

Tests of equality (tests/prove/equality), of random programs (tests/corpus) and of search (tests/search) use them, and
``benchmarks.fuzz_prover`` and ``benchmarks.fuzz_programs`` draw more.
"""
