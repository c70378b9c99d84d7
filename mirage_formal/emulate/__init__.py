"""Command ``emulate``: runs candidates' kernels on the CPU emulator and compares them with float64."""
