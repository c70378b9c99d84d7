"""Values of actions of a dueling network: V + A - mean A, V = H v + c, A = H W + b.

Wang et al., 2016, Atari: 512 features, 18 actions, a batch of 32, float16.

    python -m mirage_formal.search examples/corpus/heads/dueling_network.py
"""

import mirage_formal as mf

SMALL = {"batch": 4, "features": 32, "actions": 6}


def program(batch: int = 32, features: int = 512, actions: int = 18) -> mf.Graph:
    graph = mf.new_kernel_graph()
    h = graph.new_input((batch, features))
    v = graph.new_input((features, 1))
    c = graph.new_input((1,))
    w = graph.new_input((features, actions))
    b = graph.new_input((actions,))
    advantages = h @ w + b
    graph.mark_output(h @ v + c + advantages - graph.mean(advantages, dim=-1))
    return graph


dueling_network = program()
