"""Memory safety and freedom from data races of generated kernels.

Takes a Program, or two in one launch. Returns obligations with proofs that no access leaves its buffer and no two
accesses race, or a fault. Imports codegen.joined_launches, codegen.program, graph, logic and support.

``safety.py`` states the obligations: of races those in ``race_obligations.py``, of joined launches those in
``joined_obligations.py``. ``obligation_types.py`` has their types.
"""
