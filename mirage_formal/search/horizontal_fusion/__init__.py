"""Horizontal fusion: one kernel for several outputs of a program."""
