"""Attention of transformers' models by proved candidates.

Takes a model of transformers. Returns an attention implementation that calls proved kernels. Imports frontend,
support and torch.

    import mirage_formal.hf

    mirage_formal.hf.register()
    model.set_attn_implementation("mirage_formal")

Neither torch nor transformers is loaded before ``register`` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mirage_formal.frontend.argument_checks import error_at_user_line
from mirage_formal.support.errors import UnsupportedError

if TYPE_CHECKING:
    from mirage_formal.torch.integrations.attention import Attention


def register(*, time_limit: float = 60.0, total: float = 600.0, bucket: int = 128, **options: Any) -> Attention:
    """Make "mirage_formal" an attention implementation of transformers, for all models of this process.

    Each different shape is searched at its first call, for which finished searches are recalled from the user's cache.
    Where no candidate is proved and estimated below attention's operators one by one, torch's
    ``scaled_dot_product_attention`` computes it, as it does under torch.compile, with dropout, and with options that no
    program has. Registering again replaces what was registered.

    Args:
        time_limit: Seconds for the search of one shape.
        total: Seconds for all searches of this process; shapes that come later stay with torch.
        bucket: Lengths of queries and keys are rounded up to multiples of this, by padding with keys of no weight, so
            that a growing cache needs few searches; 0 takes them as they are. Queries of one token are not padded.
        options: Further options of ``superoptimize``.

    Returns:
        What computes attention; as text, what became of each shape.

    Raises:
        UnsupportedError: Torch or transformers is not installed, or too old.
        SpaceError: An option is at fault.
    """
    from mirage_formal.torch import require_torch

    require_torch("register")
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError:
        hint = "install it with: pip install 'transformers>=5'"
        raise error_at_user_line(
            UnsupportedError, "register: expected transformers 5 or later, got none", hint
        ) from None
    from mirage_formal.torch.integrations.attention import NAME, Attention

    attention = Attention(time_limit, total, bucket, options)
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return attention


__all__ = ["register"]
