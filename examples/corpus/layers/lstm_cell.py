"""One step of an LSTM: gates from one sum of two products; new cell f * c + i * g, new output o * tanh(cell).

Hochreiter and Schmidhuber, 1997, as torch.nn.LSTMCell: hidden 512, a batch of 16, float16; two outputs.

    python -m mirage_formal.search examples/corpus/layers/lstm_cell.py
"""

import mirage_formal as mf

SMALL = {"batch": 4, "hidden": 16}


def program(batch: int = 16, hidden: int = 512) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, hidden))
    h = graph.new_input((batch, hidden))
    c = graph.new_input((batch, hidden))
    w_x = graph.new_input((4 * hidden, hidden))
    w_h = graph.new_input((4 * hidden, hidden))
    b_x = graph.new_input((4 * hidden,))
    b_h = graph.new_input((4 * hidden,))
    gates = graph.linear(x, w_x, b_x) + graph.linear(h, w_h, b_h)
    i, f, g, o = graph.chunk(gates, 4, dim=-1)
    cell = graph.sigmoid(f) * c + graph.sigmoid(i) * graph.tanh(g)
    graph.mark_output(graph.sigmoid(o) * graph.tanh(cell))
    graph.mark_output(cell)
    return graph


lstm_cell = program()
