"""The µGraph: its values, type rules, well-formedness check, canonical form, storage locations, and verdicts.

Takes operators, shapes and attributes. Returns checked µGraphs, their canonical form, and verdicts about them.
Imports support.
"""
