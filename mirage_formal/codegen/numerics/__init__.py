"""Results of kernels within a tolerance that is derived from the program."""
