"""Tables and plots of measurements, beside published ones.

Takes measured rows. Returns Markdown tables and plots. Imports records, reproduce and support.
"""
