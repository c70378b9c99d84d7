"""Graph partitioning for programs larger than one search takes: cut into subgraphs, searched, and stitched again."""
