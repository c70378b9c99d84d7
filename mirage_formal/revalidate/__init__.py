"""Regeneration of kernels and their evidence from µGraphs, for ``check``.

It uses the checker, the safety analysis and the code generator. The package of the equality checker (``check``) imports
none of these; its facts about kernels are combined with theirs here.
"""
