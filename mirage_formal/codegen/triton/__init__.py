"""From a µGraph to one Triton file: a function for each block graph, and torch for everything else."""
