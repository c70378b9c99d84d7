"""Feed-forward block of T5 base, without biases: relu(X W1) W2.

Hidden 768, inner 3072, 512 tokens, float16.

    python -m mirage_formal.search examples/corpus/mlp/t5_mlp.py
"""

import mirage_formal as mf

SMALL = {"tokens": 16, "hidden": 32, "inner": 64}


def program(tokens: int = 512, hidden: int = 768, inner: int = 3072) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w1 = graph.new_input((hidden, inner))
    w2 = graph.new_input((inner, hidden))
    graph.mark_output(graph.relu(x @ w1) @ w2)
    return graph


t5_mlp = program()
