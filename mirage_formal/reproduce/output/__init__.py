"""Tables and plots of our measurements, beside published ones."""
