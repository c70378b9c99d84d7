"""Generated tensors for the comparison of imports with torch: ordinary values, large ones, and special values.

Values come in styles. Some styles draw all elements alike. Others put special values into a few rows along each dim
only, so that values that are not finite do not hide all other results: padding gives rows of zeros, of minus infinity
or of NaN. Masks have empty rows and columns, and may be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from mirage_formal.torch.modules.custom_operators import distinct_elements

#: Function that draws a float32 tensor of given extents; its last argument is the type's largest number.
_Style = Callable[[Any, Sequence[int], float], Any]


def _normal(draw: Any, shape: Sequence[int], largest: float) -> Any:
    return torch.randn(shape, generator=draw)


def _times(factor: float) -> _Style:
    return lambda draw, shape, largest: torch.randn(shape, generator=draw) * factor


def _positive(draw: Any, shape: Sequence[int], largest: float) -> Any:
    return torch.randn(shape, generator=draw).abs() + 0.5


def _unit(draw: Any, shape: Sequence[int], largest: float) -> Any:
    return torch.rand(shape, generator=draw)


def _zeros(draw: Any, shape: Sequence[int], largest: float) -> Any:
    return torch.zeros(shape) * _signs(draw, shape)


def _extreme(draw: Any, shape: Sequence[int], largest: float) -> Any:
    return largest * _signs(draw, shape) * torch.where(torch.rand(shape, generator=draw) < 0.5, 1.0, 0.4)


def _denormal(draw: Any, shape: Sequence[int], largest: float) -> Any:
    least = 6e-8 if largest < 1e5 else 1e-40
    return torch.randint(0, 64, tuple(shape), generator=draw) * least * _signs(draw, shape)


def _additive(draw: Any, shape: Sequence[int], largest: float) -> Any:
    """Return an additive mask of scores, in which some rows are minus infinity only."""
    return torch.where(_mask(draw, shape), 0.0, -torch.inf)


def _lowest(draw: Any, shape: Sequence[int], largest: float) -> Any:
    """Return an additive mask with the least finite number in place of minus infinity, as in transformers."""
    return torch.where(_mask(draw, shape), 0.0, -largest)


def _special(draw: Any, shape: Sequence[int], largest: float) -> Any:
    """Return normal numbers; one in sixteen is infinite, NaN, zero, the largest or the least."""
    given = (torch.inf, -torch.inf, torch.nan, 0.0, -0.0, largest, -largest, 1e-40, 1e4, -4e2)
    chosen = torch.tensor(given)[torch.randint(0, len(given), tuple(shape), generator=draw)]
    return torch.where(torch.rand(shape, generator=draw) < 0.0625, chosen, torch.randn(shape, generator=draw))


def _row_style(*given: float) -> _Style:
    """Return a style of normal numbers with constant rows of these values here and there along one dim."""

    def style(draw: Any, shape: Sequence[int], largest: float) -> Any:
        found = torch.randn(shape, generator=draw)
        if shape:
            dim = int(torch.randint(0, len(shape), (), generator=draw))
            apart = [1 if axis == dim else n for axis, n in enumerate(shape)]
            chosen = torch.tensor(given)[torch.randint(0, len(given), tuple(apart), generator=draw)]
            found = torch.where(torch.rand(apart, generator=draw) < 0.3, chosen, found)
        return found

    return style


STYLES: Final[Mapping[str, _Style]] = {
    "normal": _normal,
    "x 1e2": _times(1e2),
    "x 4e2": _times(4e2),
    "x 1e4": _times(1e4),
    "x 1e-3": _times(1e-3),
    "the largest": _extreme,
    "zeros": _zeros,
    "denormal": _denormal,
    "positive": _positive,
    "from 0 to 1": _unit,
    "0 or -inf": _additive,
    "0 or the lowest": _lowest,
    "special": _special,
    "rows of zeros or of -inf": _row_style(0.0, -torch.inf),
    "rows of inf or NaN": _row_style(torch.inf, torch.nan),
    "rows of large numbers": _row_style(4e2, -4e2, 6e4),
}

#: Style of each set: one style for all tensors, or "mixed", which draws a style for each.
SETS: Final = ("normal", "mixed", "positive", "x 4e2", "mixed", "special", "mixed", "zeros", "mixed", "the largest")


def draw_tensors(forms: Mapping[str, Any], style: str, seed: int) -> dict[str, Any]:
    """Return tensors like given ones, with values of a style.

    Args:
        forms: Tensors by their names, with or without memory: extents, strides and element types are theirs.
        style: A key of ``STYLES``, or "mixed".
        seed: Seed; the values depend on it, the style and the forms only.

    Returns:
        A tensor on the CPU for each that has floating-point numbers or booleans.
    """
    draw = torch.Generator().manual_seed(seed)
    names = list(STYLES)
    found: dict[str, Any] = {}
    for name, form in forms.items():
        chosen = names[int(torch.randint(0, len(names), (), generator=draw))] if style == "mixed" else style
        found[name] = draw_tensor(draw, form, chosen)
    return found


def draw_tensor(draw: Any, form: Any, style: str) -> Any:
    """Return a tensor like another one, with values of a style.

    Args:
        draw: A generator.
        form: Tensor with the extents, strides and element type.
        style: A key of ``STYLES``; for a mask only "zeros" matters, which gives an empty mask.
    """
    shape = tuple(form.shape)
    if form.dtype is torch.bool:
        values = torch.zeros(shape, dtype=torch.bool) if style == "zeros" else _mask(draw, shape)
    else:
        values = STYLES[style](draw, shape, torch.finfo(form.dtype).max)
    return copy_layout(values, form)


def copy_layout(values: Any, form: Any) -> Any:
    """Return values with the element type and the strides of another tensor."""
    found = torch.empty_strided(tuple(form.shape), tuple(form.stride()), dtype=form.dtype)
    distinct_elements(found, found.stride()).copy_(distinct_elements(values, found.stride()))
    return found


def _mask(draw: Any, shape: Sequence[int]) -> Any:
    """Return a random mask with some empty rows and columns."""
    found = torch.rand(shape, generator=draw) < 0.7
    for dim in range(len(shape)):
        apart = [1 if axis == dim else n for axis, n in enumerate(shape)]
        found &= torch.rand(apart, generator=draw) > 0.15
    return found


def _signs(draw: Any, shape: Sequence[int]) -> Any:
    return (torch.randint(0, 2, tuple(shape), generator=draw, dtype=torch.int8) * 2 - 1).float()


__all__ = ["SETS", "STYLES", "copy_layout", "draw_tensor", "draw_tensors"]
