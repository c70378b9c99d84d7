"""The independent checker: what it establishes again about a run, a candidate, a proof, from files alone."""
