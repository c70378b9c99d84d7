"""Router of a mixture of experts: P = softmax(X W), each token's largest probability, and each expert's average.

Switch Transformer base: hidden 768, 128 experts, 256 tokens, float16; three outputs.

    python -m mirage_formal.search examples/corpus/heads/expert_router.py
"""

import mirage_formal as mf

SMALL = {"tokens": 8, "hidden": 32, "experts": 12}


def program(tokens: int = 256, hidden: int = 768, experts: int = 128) -> mf.Graph:
    graph = mf.new_kernel_graph()
    x = graph.new_input((tokens, hidden))
    w = graph.new_input((hidden, experts))
    probabilities = graph.softmax(x @ w, dim=-1)
    graph.mark_output(probabilities)
    graph.mark_output(graph.max(probabilities, dim=-1))
    graph.mark_output(graph.mean(probabilities, dim=0))
    return graph


expert_router = program()
