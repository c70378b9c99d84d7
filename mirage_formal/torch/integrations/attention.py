"""Attention implementation for transformers, by a proved candidate for each shape, or by torch.

Calls are brought into one form: queries, keys and values of [batch, heads, length, dim], and either a mask or causal
attention. Lengths are rounded up to buckets, so that a growing cache needs few searches.

Sound: keys that are added have no weight, and results of queries that are added are dropped. A query that sees no key,
as those of padding may, has no defined result; it is given all keys, as a mask of least numbers would do.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.nn.functional as F  # as everybody writes it

from mirage_formal.frontend.argument_checks import error_at_user_line
from mirage_formal.support import options as checks
from mirage_formal.support.errors import MirageError, UnsupportedError
from mirage_formal.torch import optimize
from mirage_formal.torch.modules.module_report import ModuleReport

NAME: Final = "mirage_formal"
_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
_PLACES: Final = ("cpu", "cuda")
#: Arguments of transformers that change the definition of attention; no program supports them.
_BEYOND: Final = ("position_bias", "softcap", "cache", "s_aux", "head_mask")


class AttentionWarning(UserWarning):
    """Warning: attention of some shape is computed by torch. Said once for each reason."""


@dataclass(frozen=True, slots=True)
class AttentionInputs:
    """Inputs of one attention call in a uniform layout.

    Attributes:
        query, key, value: Tensors of [batch, heads, length, dim]; keys and values may have fewer heads.
        mask: True, or 0, where a query sees a key; None if there is none.
        causal: Whether a query sees only the keys up to its own position.
        scale: Factor of the scores.
        queries: Number of queries without padding.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    mask: torch.Tensor | None
    causal: bool
    scale: float
    queries: int

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors without a missing mask."""
        return tuple(x for x in (self.query, self.key, self.value, self.mask) if x is not None)

    def described(self) -> str:
        """Return a readable description of the shapes and other properties that select a candidate."""
        shapes = ", ".join(f"{list(x.shape)} {str(x.dtype).removeprefix('torch.')}" for x in self.tensors)
        strides = "".join(f", strides {list(x.stride())}" for x in self.tensors if not x.is_contiguous())
        return f"{shapes}{', causal' if self.causal else ''}, scale {self.scale:.4g}{strides}"

    @property
    def form(self) -> tuple[Any, ...]:
        """Return the key by which candidates are cached: forms of the tensors, causality and scale."""
        kinds = tuple((x.shape, x.stride(), x.dtype, x.device) for x in self.tensors)
        return (*kinds, self.causal, self.scale)


class Attention:
    """Attention function; registered with transformers by ``mirage_formal.hf.register``.

    Args:
        time_limit: Seconds for the search of one shape.
        total: Seconds for all searches.
        bucket: Lengths are rounded up to multiples of it; 0 leaves them.
        options: Further options of ``superoptimize``.

    Raises:
        SpaceError: One of them is at fault.
    """

    def __init__(self, time_limit: float, total: float, bucket: int, options: Mapping[str, Any]) -> None:
        self._limit_s = checks.check_value("time_limit", time_limit, checks.Amount)
        self._left_s = checks.check_value("total", total, checks.Amount)
        self._bucket = checks.check_value("bucket", bucket, checks.Natural)
        self._options = dict(options)
        self._known: dict[tuple[Any, ...], Any] = {}
        self._lock = threading.Lock()
        self._said: set[str] = set()
        #: Report of each shape that was searched.
        self.reports: dict[str, ModuleReport | str] = {}

    def __call__(
        self,
        module: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **more: Any,
    ) -> tuple[torch.Tensor, None]:
        """Compute attention with the signature of transformers' AttentionInterface, which calls it.

        Returns:
            The result of [batch, length, heads, dim], and no weights.
        """
        if torch.compiler.is_compiling() or self._needs_torch(query, key, value, attention_mask, more):
            from transformers.integrations.sdpa_attention import sdpa_attention_forward

            found: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
            return found
        causal = more.get("is_causal")
        causal = getattr(module, "is_causal", True) if causal is None else causal
        scale = more.get("scaling")
        scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
        given = self._unify_layout(query, key, value, attention_mask, causal=bool(causal), scale=scale)
        computed = self._found(given)
        result = _attention(given) if computed is None else computed(*given.tensors)
        return result[:, :, : given.queries].transpose(1, 2).contiguous(), None

    def __str__(self) -> str:
        lines = []
        for shape, report in self.reports.items():
            lines += [f"{shape}:", *(f"  {line}" for line in str(report).splitlines())]
        return "\n".join(lines) or "no attention was computed"

    # --- forms

    def _needs_torch(self, query: Any, key: Any, value: Any, mask: Any, more: Mapping[str, Any]) -> bool:
        """Return whether torch must compute a call, because no program has its options, types or devices."""
        beyond = [name for name in _BEYOND if more.get(name) is not None]
        if more.get("dropout"):
            beyond.append("dropout")
        kinds = {x.dtype for x in (query, key, value)}
        if len(kinds) != 1 or not kinds <= set(_TYPES) or query.device.type not in _PLACES:
            beyond.append(", ".join(map(str, kinds)))
        if mask is not None and (not isinstance(mask, torch.Tensor) or mask.dim() != 4):
            beyond.append("a mask of another form")
        if beyond:
            self._say(f"no program has {', '.join(beyond)}")
        return bool(beyond)

    def _unify_layout(
        self, query: Any, key: Any, value: Any, mask: Any, *, causal: bool, scale: float
    ) -> AttentionInputs:
        queries, keys = query.shape[2], key.shape[2]
        if mask is not None and mask.shape[-1] > keys:
            mask = mask[..., :keys]
        causal = causal and mask is None and queries > 1
        if causal and keys > queries:  # a static cache before its first token: what lies behind is not seen
            key, value, keys = key[:, :, :queries], value[:, :, :queries], queries
        rows = queries if queries == 1 else self._rounded(queries)
        columns = rows if causal and keys == queries else self._rounded(keys)
        if mask is None and not causal and self._bucket:  # always one, so that a length needs no program of its own
            mask = torch.ones(1, 1, 1, keys, dtype=torch.bool, device=query.device)
        if mask is not None:
            mask = _pad_mask(mask, rows - queries, columns - keys)
        query = _pad_length(query, rows - queries)
        key, value = (_pad_length(x, columns - keys) for x in (key, value))
        return AttentionInputs(query, key, value, mask, causal, scale, queries)

    def _rounded(self, length: int) -> int:
        return -(-length // self._bucket) * self._bucket if self._bucket else length

    # --- searches

    def _found(self, given: AttentionInputs) -> Any:
        """Return the function that computes inputs of this form, searching for it at first use; None if torch does."""
        form = given.form
        if form not in self._known:
            with self._lock:
                if form not in self._known:
                    self._known[form] = self._searched(given)
        return self._known[form]

    def _searched(self, given: AttentionInputs) -> Any:
        name = given.described()
        if self._left_s <= 0:
            self.reports[name] = "stays with torch: no time was left for a search"
            self._say("no time was left for searches")
            return None
        limit = min(self._limit_s, self._left_s)
        begin = time.monotonic()

        def attention(*tensors: torch.Tensor) -> torch.Tensor:
            query, key, value, *mask = tensors
            same = {"mask": mask[0] if mask else None, "query": query, "key": key, "value": value}
            return _attention(replace(given, **same))

        try:
            with torch.no_grad():
                made = optimize(attention, given.tensors, time_limit=limit, **self._options)
        except UnsupportedError as error:
            self.reports[name] = f"stays with torch: {error.what}"
            return None
        except MirageError as error:
            raise error_at_user_line(type(error), f"register: {error.what}", error.hint) from None
        finally:
            self._left_s -= time.monotonic() - begin
        report = self.reports[name] = made.mirage_report()
        return made if any(not region.kept for region in report.regions) else None

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(f"attention is computed by torch: {reason}", AttentionWarning, stacklevel=3)


def _attention(given: AttentionInputs) -> torch.Tensor:
    grouped = given.query.shape[1] != given.key.shape[1]
    return F.scaled_dot_product_attention(
        given.query,
        given.key,
        given.value,
        attn_mask=given.mask,
        is_causal=given.causal,
        scale=given.scale,
        enable_gqa=grouped,
    )


def _pad_length(x: torch.Tensor, more: int) -> torch.Tensor:
    """Return a tensor padded with zeros along the length."""
    return F.pad(x, (0, 0, 0, more)) if more else x


def _pad_mask(mask: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Return a mask padded for more queries, which see all keys, and more keys, which only these see.

    A query that sees no key is given all keys.
    """
    if mask.dtype is torch.bool:
        mask = F.pad(mask, (0, columns)) if columns else mask
        return _pad_mask_rows(mask | ~mask.any(-1, keepdim=True), rows)
    least = torch.finfo(mask.dtype).min
    mask = mask.clamp(min=least)
    return _pad_mask_rows(F.pad(mask, (0, columns), value=least) if columns else mask, rows)


def _pad_mask_rows(mask: torch.Tensor, rows: int) -> torch.Tensor:
    """Return a mask padded for more queries, which see all keys."""
    if not rows or mask.shape[-2] == 1:
        return mask.contiguous()
    return F.pad(mask, (0, 0, 0, rows), value=1 if mask.dtype is torch.bool else 0)


__all__ = ["NAME", "Attention", "AttentionInputs", "AttentionWarning"]
