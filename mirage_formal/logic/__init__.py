"""Terms, axioms, certificates, and solvers in confined processes: what prover and checker share."""
