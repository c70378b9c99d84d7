"""Pruning by abstract expressions: whether a partial µGraph can still become part of the program (paper, section 4.3).
"""
