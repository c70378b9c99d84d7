"""Kernels by what they are lowered with, their mutants, and what the claim ``realizes`` says of these."""
