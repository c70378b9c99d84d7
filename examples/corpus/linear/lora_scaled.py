"""A linear layer of Llama 3 8B with a low-rank adapter: X W^T + (alpha / r) (X A^T) B^T.

Hidden 4096, rank 16, alpha 32, 8 tokens, float16; Hu et al., "LoRA", 2021.

    python -m mirage_formal.search examples/corpus/linear/lora_scaled.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32, "rank": 4}


def program(tokens: int = 8, hidden: int = 4096, rank: int = 16) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w = graph.new_input((hidden, hidden))
    a = graph.new_input((rank, hidden))
    b = graph.new_input((hidden, rank))
    adapter = graph.linear(graph.linear(x, a), b)
    graph.mark_output(graph.linear(x, w) + 32 / rank * adapter)
    return graph


lora_scaled = program()
