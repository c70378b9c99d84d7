"""A transposition alone: X^T.

The transposed embedding table of BERT base, 30,522 words of 768, float16.

    python -m mirage_formal.search examples/corpus/positions/transposition.py
"""

import mirage_formal as mf

SMALL = {"rows": 37, "columns": 24}


def program(rows: int = 30522, columns: int = 768) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((rows, columns))
    graph.mark_output(graph.transpose(x, 0, 1))
    return graph


transposition = program()
