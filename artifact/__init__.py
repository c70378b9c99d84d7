"""The artifact: every claim of docs/results.md with the command that shows it, and what runs and judges them."""
