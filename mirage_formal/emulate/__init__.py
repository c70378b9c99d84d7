"""The command ``emulate``: kernels of candidates on the CPU emulator, beside float64."""
