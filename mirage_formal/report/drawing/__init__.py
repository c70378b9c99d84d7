"""Drawings of µGraph levels: one layered layout, printed as SVG."""
