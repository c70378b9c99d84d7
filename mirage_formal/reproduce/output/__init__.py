"""Tables and plots of measurements, beside published ones."""
