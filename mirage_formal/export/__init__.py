"""Export of built candidates as folders that need nothing of this package.

Takes a run with kernels. Returns one folder: kernels, launch code, loaders, a test and the proof. Imports codegen,
device, graph, kernel_build, records, run and support.
"""

from typing import Final

#: What a candidate can be exported to.
TARGETS: Final = ("cuda", "torch", "triton")
