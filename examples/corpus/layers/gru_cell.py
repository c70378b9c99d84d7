"""One step of a GRU: reset and update gates, candidate n = tanh(Wx + r * (U h)), result (1 - z) * n + z * h.

Cho et al., 2014, as torch.nn.GRUCell: hidden 512, a batch of 3, float16.

    python -m mirage_formal.search examples/corpus/layers/gru_cell.py
"""

import mirage_formal as mf

SMALL = {"batch": 3, "hidden": 16}


def program(batch: int = 3, hidden: int = 512) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, hidden))
    h = graph.new_input((batch, hidden))
    w_x = graph.new_input((3 * hidden, hidden))
    w_h = graph.new_input((3 * hidden, hidden))
    b_x = graph.new_input((3 * hidden,))
    b_h = graph.new_input((3 * hidden,))
    r_x, z_x, n_x = graph.chunk(graph.linear(x, w_x, b_x), 3, dim=-1)
    r_h, z_h, n_h = graph.chunk(graph.linear(h, w_h, b_h), 3, dim=-1)
    reset = graph.sigmoid(r_x + r_h)
    update = graph.sigmoid(z_x + z_h)
    new = graph.tanh(n_x + reset * n_h)
    graph.mark_output((1 - update) * new + update * h)
    return graph


gru_cell = program()
