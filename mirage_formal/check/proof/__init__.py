"""The proof kernel: replays proofs that two µGraphs are equal, and shares no code with what makes them.

It searches nothing: every step names what it applies, and the kernel applies it and compares. docs/trust.md lists what
has to be believed.
"""
