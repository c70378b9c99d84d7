"""Claim ``realizes``: every element that a Program stores is the element that its µGraph's kernel computes.

Comes in: a µGraph, the position of an operator, and its Program. Goes out: a verdict, with the first differing element.
It may import codegen.program, semantics, the arithmetic of prove.identity_testing, and what lies below.
"""
