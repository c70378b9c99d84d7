"""Terms, axioms, certificates, and solver processes with limits, shared by prover and checker."""
