"""Inputs at which two graphs differ."""
