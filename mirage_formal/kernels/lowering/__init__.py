"""Lowering: a Plan as a Program."""

from mirage_formal.kernels.lowering.lower import lower

__all__ = ["lower"]
