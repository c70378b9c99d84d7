"""A linear layer with weight normalisation: X (g V / |V|)^T, |V| of each row.

Salimans and Kingma, 2016; the last layer of DINO: 256 to 65,536 columns, 8 rows, float16, g = 1 is left out.

    python -m mirage_formal.search examples/corpus/linear/weight_norm_linear.py
"""

import mirage_formal as mf

SMALL = {"rows": 4, "width": 16, "out": 40}


def program(rows: int = 8, width: int = 256, out: int = 65536) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((rows, width))
    v = graph.new_input((out, width))
    unit = v / graph.sqrt(graph.sum(graph.square(v), dim=-1))
    graph.mark_output(graph.linear(x, unit))
    return graph


weight_norm_linear = program()
