"""A linear layer with three low-rank adapters at once, each with its weight: X W + sum_i s_i (X A_i) B_i.

Hidden 4096, ranks 8, 16 and 32, weights 2, 1 and 0.5, 8 tokens, float16.

    python -m mirage_formal.search examples/corpus/linear/lora_several.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32}


def program(tokens: int = 8, hidden: int = 4096) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w = graph.new_input((hidden, hidden))
    total = x @ w
    for rank, scale in ((8, 2), (16, 1), (32, 0.5)):
        a = graph.new_input((hidden, rank), name=f"a_{rank}")
        b = graph.new_input((rank, hidden), name=f"b_{rank}")
        total = total + scale * (x @ a @ b)
    graph.mark_output(total)
    return graph


lora_several = program()
