"""Memory safety and freedom from data races of generated kernels."""
