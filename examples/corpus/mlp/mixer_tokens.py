"""Token mixing of MLP-Mixer B/16, an MLP across the tokens of each channel: X + mlp(norm(X)^T)^T.

A batch of 2 images, 196 tokens, 768 channels, inner 384, float16: the normalised tokens are transposed, pass two linear
layers, and are transposed back.

    python -m mirage_formal.search examples/corpus/mlp/mixer_tokens.py
"""

import mirage_formal as mf

SMALL = {"batch": 2, "tokens": 12, "channels": 32, "inner": 16}


def program(batch: int = 2, tokens: int = 196, channels: int = 768, inner: int = 384) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, tokens, channels))
    weight = graph.new_input((channels,))
    bias = graph.new_input((channels,))
    w1 = graph.new_input((inner, tokens))
    b1 = graph.new_input((inner,))
    w2 = graph.new_input((tokens, inner))
    b2 = graph.new_input((tokens,))
    h = graph.transpose(graph.layer_norm(x, weight=weight, bias=bias, eps=1e-6), 1, 2)
    h = graph.linear(graph.gelu(graph.linear(h, w1, b1)), w2, b2)
    graph.mark_output(x + graph.transpose(h, 1, 2))
    return graph


mixer_tokens = program()
