"""Terms, axioms, certificates, and confined solver processes, shared by prover and checker."""
