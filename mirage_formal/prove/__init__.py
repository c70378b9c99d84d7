"""Claims about a candidate: one package for each, with its decision procedure.

Takes a program and a candidate. Returns verdicts, with a proof, a counterexample or fingerprints. Imports graph,
logic, records, semantics and support.
"""
