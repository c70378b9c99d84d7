"""Proof kernel: replays proofs that two µGraphs are equal, and shares no code with the prover.

Takes two graphs and the steps of a proof. Returns the conditions of their equality, or the first step that does not
hold. Imports graph and support.

It does not search: every step names its law and operands, and the kernel applies the law and compares. docs/trust.md
lists the assumptions that have to be believed.
"""
