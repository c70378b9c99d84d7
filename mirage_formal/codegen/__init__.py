"""From a µGraph to CUDA: stable form, plan, Program, text, cost."""
