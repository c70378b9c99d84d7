"""Report page: one self-contained HTML file."""
