"""The µGraph: its values, rules, well-formedness, canonical form, and what is known about it."""
