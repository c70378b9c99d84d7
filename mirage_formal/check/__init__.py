"""Independent checker: verifies the claims about a run, a candidate or a proof from files alone."""
