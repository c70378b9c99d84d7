"""Two experts of Mixtral 8x7B for the same token, with their gates: g1 E1(X) + g2 E2(X).

E(X) = (silu(X Wg) * (X Wu)) Wd; hidden 4096, inner 14336, 1 token, float16; g1 and g2 come from the router.

    python -m mirage_formal.search examples/corpus/mlp/two_experts.py
"""

import mirage_formal as mf

SMALL = {"tokens": 2, "hidden": 32, "inner": 64}


def program(tokens: int = 1, hidden: int = 4096, inner: int = 14336) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    total = None
    for number in (1, 2):
        w_gate = graph.new_input((hidden, inner), name=f"w_gate_{number}")
        w_up = graph.new_input((hidden, inner), name=f"w_up_{number}")
        w_down = graph.new_input((inner, hidden), name=f"w_down_{number}")
        gate = graph.new_input((tokens, 1), name=f"gate_{number}")
        expert = graph.silu(x @ w_gate) * (x @ w_up) @ w_down * gate
        total = expert if total is None else total + expert
    assert total is not None
    graph.mark_output(total)
    return graph


two_experts = program()
