"""Terms, axioms, certificates, and solver processes with limits, shared by prover and checker.

Takes terms and questions as SMT-LIB text. Returns answers of z3 and cvc5 as values, certificates, and the axioms.
Imports graph and support.

The solvers' timeouts are in ``support/limits.py``.
"""
