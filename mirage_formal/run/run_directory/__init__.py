"""The directory of a run: what is written, who may write, what may be removed."""
