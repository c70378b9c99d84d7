"""Pruning by abstract expressions: can a partial µGraph still become part of the program (paper, section 4.3)?"""
