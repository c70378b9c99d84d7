"""Tables and plots of what was measured, beside what was published."""
