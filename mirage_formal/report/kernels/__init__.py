"""Explanations of generated kernels: what each thread of a block loads, computes and stores, in sentences.

Takes Programs and the recorded claim on what they compute. Returns sentences. Imports codegen, graph, records and
support.

The sentences are derived from the Program by evaluating its index expressions. They are for readers; nothing rests on
them.
"""
