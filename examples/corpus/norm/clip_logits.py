"""Similarity of images and texts of CLIP ViT-B/32: t * (I / |I|) (T / |T|)^T.

64 images, 64 texts, embeddings of 512, float16; t = e^s with the learned s[1,1].

    python -m mirage_formal.search examples/corpus/norm/clip_logits.py
"""

import mirage_formal as mf

SMALL = {"images": 8, "texts": 12, "width": 32}


def program(images: int = 64, texts: int = 64, width: int = 512) -> mf.Graph:
    graph = mf.new_kernel_graph()
    image = graph.new_input((images, width))
    text = graph.new_input((texts, width))
    logit_scale = graph.new_input((1, 1))
    image = image / graph.sqrt(graph.sum(image**2, dim=-1))
    text = text / graph.sqrt(graph.sum(text**2, dim=-1))
    graph.mark_output(graph.exp(logit_scale) * (image @ text.mT))
    return graph


clip_logits = program()
