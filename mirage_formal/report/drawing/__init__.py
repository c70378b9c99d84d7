"""Drawings of µGraph levels: one layered layout, printed as SVG.

Takes levels of nodes and edges. Returns SVG text. Imports graph and support.
"""
