"""Claims with their proofs written by hand, edits and judges of proofs, and provers with faults.

Tests of the prover and of the checker use them (tests/prove, tests/refute, tests/prove, tests/check, tests/attack).
"""
