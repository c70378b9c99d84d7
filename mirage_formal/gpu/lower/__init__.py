"""Lowering: a Plan as a Program."""

from mirage_formal.gpu.lower.kernel import lower

__all__ = ["lower"]
