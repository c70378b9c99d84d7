"""Kernels on a device: compiled, launched, timed; and on the emulator."""
