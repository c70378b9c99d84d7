"""Distance of a student from its teacher: sum p (log p - log q) of each row, at temperature 2.

DistilBERT: 30,522 words, 16 tokens, float16; p and q are softmaxes of the scores over the temperature.

    python -m mirage_formal.search examples/corpus/heads/distillation.py
"""

import mirage_formal as mf

SMALL = {"rows": 4, "words": 46}


def program(rows: int = 16, words: int = 30522) -> mf.Graph:
    graph = mf.new_kernel_graph()
    teacher = graph.new_input((rows, words))
    student = graph.new_input((rows, words))
    log_p = graph.log_softmax(teacher / 2, dim=-1)
    log_q = graph.log_softmax(student / 2, dim=-1)
    graph.mark_output(graph.sum(graph.exp(log_p) * (log_p - log_q), dim=-1))
    return graph


distillation = program()
