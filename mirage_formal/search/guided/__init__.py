"""Guided search over symbolic tilings: saturation of index-aware classes, then extraction and choice of extents.

Takes a program and a search space. Returns candidates by saturation over symbolic tilings. Imports graph, logic,
prove, search and support.

Terms of these modules and their common names:

- axis: an index variable, as in an einsum (algebra/part_numbering.py); a copy of an axis is another variable of the
  same range.
- part: a factor of an axis' extent, a digit of its index in a mixed radix. A dim is a list of parts, a mask a set of
  parts as bits (algebra/part_masks.py). A leaf is a part of a kernel's inputs before the kernel splits it.
- frame: for each axis the digits that its index has at one point of the kernel graph.
- form: the number of a normal form, a polynomial over tensor elements (algebra/normal_forms.py). A wholly bound index
  is bound by a sum over a whole axis; its name does not matter, as in alpha-equivalence.
- class: the tensors of a block that have one value, as an e-class of an e-graph; a producer is an e-node, the closure
  an e-graph pruned by the target, and extraction chooses an e-node of each class (saturation.py, extract.py).
- structure: a schedule without numbers: which digits the grid, the loop and the tile take (symbolic_tiling.py). An
  assignment gives them numbers (extent_choice.py).
- view: a tensor after an index renaming (index_renaming.py).
- handover: the interface between a kernel and those behind it: its outputs and the frame (kernel_interface.py).
- path: a sequence of kernels up to the program's output (kernel_sequences.py).
- tie: two dims of inputs that have one index in every term of the output (shared_indices.py).
"""
