"""The µGraph: its values, type rules, well-formedness check, canonical form, storage locations, and verdicts."""
