"""Regeneration of kernels and their evidence from µGraphs, for ``check``.

Takes the kernels of a run. Returns findings: kernels derived again, obligations asked again, machine code compared.
Imports check, codegen, device, graph, logic, prove, records, search and support.

It uses the checker, the safety analysis and the code generator. The package of the equality checker (``check``) imports
none of these; its facts about kernels are combined with theirs here.
"""
