"""Random modules as users write them, made of the examples of the table of operators and of what models are made of.

A module is some inputs and some lines; each line is an example whose tensors are inputs, results of earlier lines that
have the extents it needs, or comparisons of these. Numbers in it are changed at random. What torch refuses is drawn
again. What breaks the contract of a module is reduced to the smallest module that still does.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from mirage_formal.support.errors import MirageError
from mirage_formal.torch import from_torch
from mirage_formal.torch.comparison.candidate_comparison import clamp_values
from mirage_formal.torch.comparison.contract import TURNED, difference
from mirage_formal.torch.comparison.import_comparison import RegionPiece, compare_with_torch
from mirage_formal.torch.comparison.samples import STYLES, draw_tensors
from mirage_formal.torch.modules.region_search import choose_candidate
from mirage_formal.torch.op_table import LETTERS, ROWS

#: Names of tensors in an example: a letter, behind p (positive) or m (a mask).
NAME: Final = re.compile(rf"(?<![\w.'])([pm]?[{''.join(LETTERS)}])(?![\w('])")
TYPES: Final = ("float16", "bfloat16", "float32")
_FLOAT: Final = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])|(?<![\w.])1e-\d+")
_WHOLE: Final = re.compile(
    r"(?<=[(\s])-?\d+(?=\))|(?<=alpha=)\d+(?![.\d])|(?<=beta=)\d+(?![.\d])|(?<=value=)\d+(?![.\d])"
)
_TYPE: Final = re.compile(r"torch\.(float16|bfloat16|float32)")
_NUMBERS: Final = ("0.0", "0.5", "1.0", "2.0", "0.25", "0.1", "1e-3", "10.0", "100.0", "3e4", "1e-5", "12.0")

#: What models write beside single operators, and what has gone wrong.
IDIOMS: Final = (
    "torch.where(ma, a / b, 0.0)",
    "torch.where(b > 0, a / b, 0.0)",
    "torch.where(a > 0, torch.log(a), 0.0)",
    "torch.where(a > 20, a, torch.log1p(torch.exp(a)))",
    "torch.exp(a).clamp(max=10)",
    "torch.exp(a).masked_fill(ma, 0.0)",
    "torch.tril(torch.exp(a))",
    "torch.log(torch.exp(a) + 1.0)",
    "torch.softmax(a.masked_fill(ma, float('-inf')), -1)",
    "torch.softmax(a.masked_fill(~ma, -1e4), -1)",
    "torch.softmax(a + torch.where(ma, 0.0, float('-inf')), -1)",
    "torch.softmax(a, -1, dtype=torch.float32).to(a.dtype)",
    "torch.log_softmax(a.masked_fill(ma, float('-inf')), -1)",
    "torch.nn.functional.scaled_dot_product_attention(x, k, k, attn_mask=mo)",
    "torch.nn.functional.scaled_dot_product_attention(x, k, k, attn_mask=o)",
    "torch.nn.functional.scaled_dot_product_attention(x, k, k, is_causal=True)",
    "torch.softmax((x @ k.mT * 0.3).masked_fill(~mo, float('-inf')), -1) @ k",
    "torch.softmax(x @ k.mT * 0.3 + o, -1) @ k",
    "torch.nn.functional.selu(a)",
    "torch.nn.functional.elu(a)",
    "torch.nn.functional.normalize(a, dim=-1)",
    "torch.nn.functional.cosine_similarity(a, b, dim=-1)",
    "a * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + 1e-6)",
    "v * (a.float() * torch.rsqrt(a.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(a.dtype)",
    "(a - a.mean(-1, keepdim=True)) / torch.sqrt(a.var(-1, keepdim=True) + 1e-5)",
    "(a - a.to(torch.bfloat16).to(a.dtype)) * 256",
    "a.to(torch.bfloat16).to(torch.float32) - a.to(torch.float32)",
    "torch.relu(a.to(torch.float16)).to(torch.float32)",
    "(a * ma).sum(-1, keepdim=True) / ma.sum(-1, keepdim=True).clamp(min=1)",
    "torch.nn.functional.glu(a)",
    "torch.nn.functional.binary_cross_entropy(torch.sigmoid(a), torch.sigmoid(b))",
    "torch.maximum(a, torch.zeros_like(a)) + torch.minimum(b, torch.ones_like(b))",
    "torch.full_like(a, 1e4) + a",
    "torch.sqrt(torch.relu(a))",
    "torch.sigmoid(a) * torch.tanh(b)",
    "a / (1.0 + torch.exp(-a))",
    "torch.logsumexp(a.masked_fill(ma, float('-inf')), -1)",
    "torch.nn.functional.pad(a, (1, 2))",
    "torch.amax(a.masked_fill(ma, float('-inf')), -1)",
    "(a == b) * a",
)
#: Extents of letters that only idioms have: a mask of scores.
_MORE: Final = {"o": (2, 1, 4, 7)}
_EXTENTS: Final = {**LETTERS, **_MORE}
_NAMES: Final = re.compile(rf"(?<![\w.'])([pm]?[{''.join(_EXTENTS)}])(?![\w('])")


@dataclass(frozen=True, slots=True)
class Step:
    """One line: a name, and the expression that it stands for, with the names that it reads."""

    name: str
    text: str
    reads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """An input: its extents and element type."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Module:
    """A random module.

    Attributes:
        inputs: Its inputs.
        steps: Its lines.
        outputs: Names of what it returns.
    """

    inputs: Mapping[str, Given]
    steps: tuple[Step, ...]
    outputs: tuple[str, ...]

    @property
    def text(self) -> str:
        """As a user writes it."""
        comment = ", ".join(f"{name}: {item.dtype}{list(item.shape)}" for name, item in self.inputs.items())
        lines = [f"def forward({', '.join(self.inputs)}):  # {comment}"]
        lines += [f"    {step.name} = {step.text}" for step in self.steps]
        return "\n".join([*lines, f"    return ({', '.join(self.outputs)},)"]) + "\n"

    def function(self) -> Any:
        """As a function."""
        names: dict[str, Any] = {"torch": torch}
        exec(compile(self.text, "module", "exec"), names)
        return names["forward"]

    def arguments(self, seed: int = 0) -> tuple[Any, ...]:
        """Ordinary values for its inputs."""
        generator = torch.Generator().manual_seed(seed)
        found = []
        for item in self.inputs.values():
            values = torch.randn(item.shape, generator=generator)
            found.append(values > -0.5 if item.dtype == "bool" else values.to(getattr(torch, item.dtype)))
        return tuple(found)

    def of(self, outputs: Sequence[str]) -> Module:
        """What of it some results need."""
        needed, steps = set(outputs), []
        for step in reversed(self.steps):
            if step.name in needed:
                steps.append(step)
                needed.update(step.reads)
        inputs = {name: item for name, item in self.inputs.items() if name in needed}
        return Module(inputs, tuple(reversed(steps)), tuple(outputs))

    def without(self, name: str, shape: Sequence[int], dtype: str) -> Module:
        """The same with an input in place of a line."""
        inputs = {**self.inputs, name: Given(tuple(shape), dtype)}
        steps = tuple(step for step in self.steps if step.name != name)
        return replace(self, inputs=inputs, steps=steps).of(self.outputs)


def values(module: Module) -> dict[str, Any]:
    """Every tensor of a module, computed from ordinary values."""
    known: dict[str, Any] = dict(zip(module.inputs, module.arguments(), strict=True))
    with torch.no_grad():
        for step in module.steps:
            known[step.name] = eval(step.text, {"torch": torch, **known})
    return known


@dataclass
class _Writer:
    draw: random.Random
    main: str
    inputs: dict[str, Given] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)

    def input(self, letter: str, shape: tuple[int, ...], dtype: str) -> str:
        """A new input."""
        name = f"{letter}{sum(n.startswith(letter) for n in self.inputs)}"
        self.inputs[name] = Given(shape, dtype)
        numbers = torch.randn(shape, generator=torch.Generator().manual_seed(len(self.inputs)))
        self.known[name] = numbers > 0 if dtype == "bool" else numbers.to(getattr(torch, dtype))
        return name

    def tensor(self, name: str) -> str:
        """What stands for a name in an example."""
        draw, shape = self.draw, _EXTENTS[name[-1]]
        mask = len(name) == 2 and name[0] == "m"
        alike = [n for n, x in self.known.items() if tuple(x.shape) == shape and (x.dtype is torch.bool) == mask]
        made = [n for n in alike if n not in self.inputs]
        if made and draw.random() < 0.75:
            return draw.choice(made)
        if mask:
            floats = [n for n, x in self.known.items() if tuple(x.shape) == shape and x.is_floating_point()]
            if floats and draw.random() < 0.5:
                sign, bound = draw.choice(("<", "<=", ">", ">=", "==", "!=")), draw.choice(("0", "1.0", "-0.5", "0.25"))
                return f"({draw.choice(floats)} {sign} {bound})"
            return self.input("m", shape, "bool")
        if alike and draw.random() < 0.3:
            return draw.choice(alike)
        larger = [n for n, x in self.known.items() if x.is_floating_point() and x.numel() == prod(shape)]
        if larger and draw.random() < 0.3:
            return f"{draw.choice(larger)}.reshape({shape})"
        dtype = self.main if draw.random() < 0.9 else draw.choice(TYPES)
        return self.input(name[-1], shape, dtype)

    def step(self) -> bool:
        """One more line; whether torch takes it."""
        draw = self.draw
        example = draw.choice(IDIOMS) if draw.random() < 0.3 else draw.choice(_EXAMPLES)
        kept = (dict(self.inputs), dict(self.known))
        chosen = {name: self.tensor(name) for name in dict.fromkeys(_NAMES.findall(example))}
        text = _changed(example, draw)
        text = _NAMES.sub(lambda match: chosen[match.group(1)], text)
        name = f"t{len(self.steps)}"
        try:
            with torch.no_grad():
                found = eval(text, {"torch": torch, **self.known})
        except (RuntimeError, TypeError, ValueError, IndexError, SyntaxError):
            found = None
        if not isinstance(found, torch.Tensor) or not 0 < found.numel() <= 4096 or found.dim() > 5:
            self.inputs, self.known = kept
            return False
        self.known[name] = found
        words = set(re.findall(r"[a-z]+\d+", " ".join(chosen.values())))
        self.steps.append(Step(name, text, tuple(sorted(words & set(self.known)))))
        return True


_EXAMPLES: Final = tuple(row.example for row in ROWS if not row.refused)


def _changed(example: str, draw: random.Random) -> str:
    """An example with other numbers and element types."""
    text = _FLOAT.sub(lambda m: draw.choice(_NUMBERS) if draw.random() < 0.4 else m.group(), example)
    text = _WHOLE.sub(lambda m: draw.choice(_NUMBERS) if draw.random() < 0.15 else m.group(), text)
    return _TYPE.sub(lambda m: f"torch.{draw.choice(TYPES)}" if draw.random() < 0.6 else m.group(), text)


def random_module(seed: int) -> Module:
    """The module of a seed: 1 to 6 lines, of which up to three are results."""
    draw = random.Random(seed)
    writer = _Writer(draw, draw.choice(TYPES))
    count = draw.choice((1, 1, 2, 2, 3, 4, 5, 6))
    while len(writer.steps) < count:
        writer.step()
    floats = [s.name for s in writer.steps if writer.known[s.name].is_floating_point()]
    if not floats:
        return random_module(seed + (1 << 32))
    outputs = list(dict.fromkeys([floats[-1], *draw.sample(floats, min(len(floats), draw.choice((0, 0, 1, 2))))]))
    return Module(writer.inputs, tuple(writer.steps), tuple(outputs)).of(outputs)


#: Sets of a module: one style for all inputs, chosen by its seed, and four that mix styles.
_MIXED: Final = ("mixed",) * 4
_LONGER: Final = 4


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
    return Violation(seed, *_smallest(module, said, sets * _LONGER)) if said else None


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
    from mirage_formal.codegen.target import load_target
    from mirage_formal.device.emulate import EmulationFault
    from mirage_formal.emulate.runner import EmulatedExecutable
    from mirage_formal.kernel_build.build import build
    from mirage_formal.kernel_build.built_kernels import KernelRejected

    module = random_module(seed)
    try:
        found = from_torch(module.function(), module.arguments())
    except MirageError:
        return None
    for number in range(len(found.regions)):
        piece = RegionPiece(found, number)
        program = piece.program
        try:
            out = place / f"m{seed}-{number}"
            results = mf.superoptimize(program, out=out, time_limit=time_limit, workers=1, measure=0, cache=False)
            best = choose_candidate(piece, results, inf)
            if isinstance(best, str):
                continue
            made = build(best.graph, program, load_target("h200"))
        except KernelRejected:
            continue
        except MirageError as error:
            return Violation(seed, f"no kernels: {type(error).__name__}: {error}", module.text)
        for turn, style in enumerate(("normal", *_MIXED)):
            leaves = {name: clamp_values(x) for name, x in draw_tensors(piece.leaves, style, seed * 8 + turn).items()}
            try:
                expected = piece.expected(leaves)
            except RuntimeError:
                continue
            arrays = [np.asarray(x.double().numpy()) for x in piece.region.read({**piece.constants, **leaves})]
            try:
                results = [torch.from_numpy(np.array(x, order="C")) for x in EmulatedExecutable(made)(arrays)]
            except EmulationFault as error:
                return Violation(seed, f"emulator: {error}", module.text)
            for output in piece.region.outputs:
                how = difference(output.present(results), expected[output.node])
                if how is not None and how.kind != TURNED:
                    text = f"candidate {best.digest[:12]}, region {number}, {style} {turn}: {output.node}: {how}"
                    return Violation(seed, text, module.text)
    return None
