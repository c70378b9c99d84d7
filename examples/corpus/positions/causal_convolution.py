"""Causal convolution of Mamba along the tokens, of each channel alone, with silu: silu(sum_i w_i X[t - 3 + i] + b).

Mamba 130M: 1536 channels, 512 tokens, width 4, float16. Three zeros stand in front of the tokens; each tap is a slice.

    python -m mirage_formal.search examples/corpus/positions/causal_convolution.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "channels": 24, "width": 4}


def program(tokens: int = 512, channels: int = 1536, width: int = 4) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, channels))
    w = graph.new_input((width, channels))
    b = graph.new_input((channels,))
    padded = graph.pad(x, 0, width - 1, 0)
    total = b
    for i in range(width):
        total = total + padded[i : i + tokens] * w[i : i + 1]
    graph.mark_output(graph.silu(total))
    return graph


causal_convolution = program()
