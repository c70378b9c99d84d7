"""Lowering: from plans, and from predefined operators, to Programs."""
