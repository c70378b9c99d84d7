"""Proof kernel: replays proofs that two µGraphs are equal, and shares no code with the prover.

It does not search: every step names its law and operands, and the kernel applies the law and compares. docs/trust.md
lists the assumptions that have to be believed.
"""
