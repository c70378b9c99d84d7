"""Feed-forward block of Nemotron-4 15B with squared ReLU: relu(X W1)^2 W2.

Hidden 6144, inner 24576, 4 tokens (a batch that decodes), bfloat16; So et al., "Primer", 2021.

    python -m mirage_formal.search examples/corpus/mlp/squared_relu_mlp.py
"""

import mirage_formal as mf

SMALL = {"tokens": 4, "hidden": 32, "inner": 64}


def program(tokens: int = 4, hidden: int = 6144, inner: int = 24576) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden), mf.bfloat16)
    w1 = graph.new_input((hidden, inner), mf.bfloat16)
    w2 = graph.new_input((inner, hidden), mf.bfloat16)
    graph.mark_output(graph.square(graph.relu(x @ w1)) @ w2)
    return graph


squared_relu_mlp = program()
