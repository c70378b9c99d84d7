"""Independent checker: verifies the claims about a run, a candidate or a proof from files alone.

Takes files of a run, a candidate or a proof, none of which it trusts. Returns findings: each claim as established,
refused or not decided. Imports graph, logic, records and support.
"""
