"""Second-order term of a factorization machine: half the sum over factors of (X V)^2 - X^2 V^2.

Rendle, 2010; a batch of 64, 1000 features, 16 factors, float16.

    python -m mirage_formal.search examples/corpus/linear/factorization_machine.py
"""

import mirage_formal as mf

SMALL = {"batch": 8, "features": 30, "factors": 8}


def program(batch: int = 64, features: int = 1000, factors: int = 16) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((batch, features))
    v = graph.new_input((features, factors))
    pairs = graph.square(x @ v) - graph.square(x) @ graph.square(v)
    graph.mark_output(0.5 * graph.sum(pairs, dim=-1))
    return graph


factorization_machine = program()
