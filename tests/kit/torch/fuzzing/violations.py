"""Random modules held to the contract: what breaks it, as the smallest module that still does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from mirage_formal.errors import MirageError
from mirage_formal.torch import from_torch
from mirage_formal.torch.comparison.compare import Piece, compare_with_torch
from mirage_formal.torch.comparison.contract import TURNED, difference
from mirage_formal.torch.comparison.samples import STYLES, draw
from tests.kit.torch.fuzzing.random_modules import Module, random_module, values

#: Sets of a module: one style for all inputs, chosen by its seed, and four that mix styles.
_MIXED: Final = ("mixed",) * 4
_MORE: Final = 4
#: The largest finite number that emulated candidates are given; a product of three, and sums of such, are finite.
_LARGEST: Final = 2.0**40


@dataclass(frozen=True, slots=True)
class Violation:
    """What breaks the contract.

    Attributes:
        seed: The seed of the module.
        said: How.
        text: The smallest module that does.
    """

    seed: int
    said: str
    text: str


def violation(seed: int) -> Violation | None:
    """What is wrong with the import of the module of a seed; None if nothing is."""
    module = random_module(seed)
    styles = list(STYLES)
    sets = (styles[seed % len(styles)], *_MIXED)
    said = _said(module, sets)
    return Violation(seed, *_smallest(module, said, sets * _MORE)) if said else None


def _said(module: Module, sets: Sequence[str]) -> str:
    """How the import of a module breaks the contract; empty if it keeps it, or torch.export has no graph."""
    try:
        found = from_torch(module.function(), module.arguments())
    except MirageError as error:
        return "" if "torch.export has no graph" in str(error) else f"refused: {error}"
    except Exception as error:  # whatever is wrong with a rule
        return f"crash of the import: {type(error).__name__}: {error}"
    try:
        faults = compare_with_torch(found, sets=sets).faults
    except Exception as error:  # whatever is wrong with a program
        return f"crash: {type(error).__name__}: {error}"
    return "; ".join(dict.fromkeys(str(fault) for fault in faults.values()))


def _smallest(module: Module, said: str, sets: Sequence[str]) -> tuple[str, str]:
    """How the smallest part of a module breaks the contract, and its text."""
    smaller = True
    while smaller:
        smaller = False
        known = values(module)
        cuts = [module.of([name]) for name in module.outputs if len(module.outputs) > 1]
        cuts += [module.of([s.name]) for s in module.steps if [s.name] != list(module.outputs)]
        for step in module.steps:
            if step.name not in module.outputs:
                made = known[step.name]
                cuts.append(module.without(step.name, made.shape, str(made.dtype).removeprefix("torch.")))
        for cut in cuts:
            if not _floating(cut, known) or not (found := _said(cut, sets)):
                continue
            module, said, smaller = cut, found, True
            break
    return said, module.text


def _floating(module: Module, known: dict[str, Any]) -> bool:
    return bool(module.steps) and all(known[name].is_floating_point() for name in module.outputs)


def emulated(seed: int, place: Path, time_limit: float) -> Violation | None:
    """Run the best candidates for the module of a seed on the emulator, and return how they break the contract.

    What docs/torch.md does not promise of candidates is not asked: NaN may stand in place of an infinity, float32 below
    the normal numbers is flushed to zero, and products and sums of numbers in any order are finite. A candidate that
    cannot be built is none.

    Args:
        seed: The seed.
        place: A directory for the searches.
        time_limit: Seconds of each search.
    """
    import mirage_formal as mf
    from mirage_formal.device.emulate import EmulationFault
    from mirage_formal.emulate.runner import Emulated
    from mirage_formal.kernels.target import load_target
    from mirage_formal.run.kernel_build.build import build
    from mirage_formal.run.kernel_build.values import KernelRefused

    module = random_module(seed)
    try:
        found = from_torch(module.function(), module.arguments())
    except MirageError:
        return None
    for number in range(len(found.regions)):
        piece = Piece(found, number)
        program = piece.program
        try:
            out = place / f"m{seed}-{number}"
            best = mf.superoptimize(program, out=out, time_limit=time_limit, workers=1, measure=0, cache=False)[0]
            made = build(best.graph, program, load_target("h200"))
        except KernelRefused:
            continue
        except MirageError as error:
            return Violation(seed, f"no kernels: {type(error).__name__}: {error}", module.text)
        for turn, style in enumerate(("normal", *_MIXED)):
            leaves = {name: _within_promise(x) for name, x in draw(piece.leaves, style, seed * 8 + turn).items()}
            try:
                expected = piece.expected(leaves)
            except RuntimeError:
                continue
            arrays = [np.asarray(x.double().numpy()) for x in piece.region.read({**piece.constants, **leaves})]
            try:
                results = [torch.from_numpy(np.array(x, order="C")) for x in Emulated(made)(arrays)]
            except EmulationFault as error:
                return Violation(seed, f"emulator: {error}", module.text)
            for output in piece.region.outputs:
                how = difference(output.present(results), expected[output.node])
                if how is not None and how.kind != TURNED:
                    text = f"candidate {best.digest[:12]}, region {number}, {style} {turn}: {output.node}: {how}"
                    return Violation(seed, text, module.text)
    return None


def _within_promise(x: torch.Tensor) -> torch.Tensor:
    """Return values of a leaf without those of which the contract promises nothing."""
    if x.dtype == torch.float32:
        x = torch.where(x.abs() < torch.finfo(x.dtype).smallest_normal, 0.0, x)
    if x.dtype in (torch.float32, torch.bfloat16):
        x = torch.where(x.isfinite(), x.clamp(-_LARGEST, _LARGEST), x)
    return x


__all__ = ["Violation", "emulated", "violation"]
