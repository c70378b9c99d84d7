"""Latent attention of DeepSeek V2, one new token over 4096 cached latents: softmax((Q C^T + R P^T) / sqrt(192)) C.

128 heads, of which the queries have absorbed the key projection: Q[128,512]. The cache is one latent of 512 and one
rotated key of 64 for each token, shared by all heads. A head has 128 + 64 = 192 elements, hence the scale. bfloat16.

    python -m mirage_formal.search examples/corpus/attention/deepseek_mla.py
"""

import math

import mirage_formal as mf

SMALL = {"heads": 16, "keys": 64, "latent": 32, "rotary": 16, "head": 24}


def program(heads: int = 128, keys: int = 4096, latent: int = 512, rotary: int = 64, head: int = 192) -> mf.Graph:
    graph = mf.new_kernel_graph()
    q = graph.new_input((heads, latent), mf.bfloat16)
    q_rotary = graph.new_input((heads, rotary), mf.bfloat16)
    c = graph.new_input((keys, latent), mf.bfloat16)
    k_rotary = graph.new_input((keys, rotary), mf.bfloat16)
    scores = (q @ c.mT + q_rotary @ k_rotary.mT) / math.sqrt(head)
    graph.mark_output(graph.softmax(scores, dim=-1) @ c)
    return graph


deepseek_mla = program()
