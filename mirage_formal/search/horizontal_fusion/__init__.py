"""Candidates for programs with several outputs: kernels of the outputs' own programs, united to one."""
