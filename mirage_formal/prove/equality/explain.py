"""A proof for readers: the program's formula, every step and lemma, the candidate's formula, as text or LaTeX."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from mirage_formal.graph.graph import KernelGraph
from mirage_formal.graph.verdict import Equivalent, Unknown
from mirage_formal.prove.equality.formula_printer import LATEX, TEXT, FormulaPrinter
from mirage_formal.prove.equality.polynomials import LargestParts, Monomial, Polynomial
from mirage_formal.prove.equality.prove import Derivation, derive, prove, split_proof_obligation

_LAWS: Final = {
    "sum": "sum: nested sums joined, independent factors taken out, digits regrouped",
    "max": "max: nested maxima joined, digits regrouped",
    "pmax": "running max: digits regrouped",
    "content": "common factor taken out",
    "square": "the square of a polynomial",
    "largest": "largest value: a summand, a factor that is not negative and an increasing function taken out",
}


def explain(program: KernelGraph, candidate: KernelGraph, *, latex: bool = False) -> str:
    """Return a readable trace of the prover's steps on a pair of programs.

    The formulas are those of the proof object that ``prove`` returns; nothing is proved by printing them.

    Raises:
        GraphError: A graph is not well-formed, or the two have other inputs or outputs.
    """
    found = prove(program, candidate)
    if isinstance(found, Equivalent) and found.proof.startswith(b"["):
        parts = split_proof_obligation(program, candidate)
        return "\n".join(f"Of {name}:\n\n{_explain_pair(mine, theirs, latex)}" for name, mine, theirs in parts)
    return _explain_pair(program, candidate, latex)


def _explain_pair(program: KernelGraph, candidate: KernelGraph, latex: bool) -> str:
    derivation, verdict = derive(program, candidate)
    if isinstance(verdict, Unknown) and any(c.program is None or c.candidate is None for c in derivation.closings):
        return f"unknown: {verdict.reason}\n"
    return _Explanation(program, derivation, latex).text()


class _Explanation:
    def __init__(self, program: KernelGraph, derivation: Derivation, latex: bool) -> None:
        self.derivation = derivation
        self.tensors = derivation.tensors
        self.latex = latex
        names = [source.name or f"x{i}" for i, source in enumerate(program.inputs)]
        names += [f"{('program', 'candidate')[graph]}{at}.{piece}" for graph, at, piece in derivation.atoms]
        self.writer = FormulaPrinter(self.tensors, names, LATEX if latex else TEXT)

    def text(self) -> str:
        lines: list[str] = []
        several = len(self.derivation.closings) > 1
        for number, closing in enumerate(self.derivation.closings):
            tag = f" {number}" if several else ""
            lines += [f"Program{tag}", self._tensor(closing.program)]
        lines += ["", "Steps", *self._steps()]
        lines += ["", "Laws of sums, maxima and common factors that the steps use", *self._lemmas()]
        for number, closing in enumerate(self.derivation.closings):
            tag = f" {number}" if several else ""
            lines += ["", f"Candidate{tag}", self._tensor(closing.candidate), self._end(closing.multiplier)]
        return "\n".join(lines) + "\n"

    def _math(self, formula: str) -> str:
        return f"\\[ {formula} \\]" if self.latex else f"  {formula}"

    def _tensor(self, number: int | None) -> str:
        assert number is not None
        step = self.tensors.steps[number]
        inside = ", ".join(self._string(string) for string in step.strings)
        head = rf"t_{{{number}}}[{inside}]" if self.latex else f"t{number}[{inside}]"
        return self._math(f"{head} = {self.writer.polynomial(step.element)}")

    def _string(self, string: tuple[int, ...]) -> str:
        below, parts = 1, []
        for d in reversed(string):
            parts.append((below, d))
            below *= self.tensors.extent[d]
        return self.writer.index((0, tuple(reversed(parts))))

    def _steps(self) -> Iterable[str]:
        for number in self.derivation.needed_steps():
            step = self.tensors.steps[number]
            operands = ", ".join(f"t{n}" for n in step.operands)
            yield f"t{number}: {_name(step.body)}({operands})"
            yield self._tensor(number)

    def _lemmas(self) -> Iterable[str]:
        for number in self.derivation.needed_lemmas():
            lemma = self.tensors.lemmas[number]
            yield f"[{number}] {_LAWS[lemma.body[0]]}"
            yield self._math(f"{self._left(lemma.body)} = {self._right(lemma.body, lemma.result)}")

    def _left(self, body: tuple[Any, ...]) -> str:
        match body:
            case ("sum", bound, m, _, _):
                return self._over("sum", bound, self.writer.term(m, 1))
            case ("max", bound, p, *_):
                return self._over("max", bound, self.writer.polynomial(p))
            case ("pmax", index, u, bound, p, *_):
                until = f"{self.writer.digit(u)} {chr(92) + 'le' if self.latex else '<='} {self.writer.index(index)}"
                names = ", ".join([until, *(self.writer.digit(d) for d in sorted(bound))])
                head = rf"\max_{{{names}}}" if self.latex else f"max[{names}]"
                return f"{head}({self.writer.polynomial(p)})"
            case ("content" | "square", p, *_):
                return self.writer.polynomial(p)
            case ("largest", bound, some, _):
                inside = ", ".join(self.writer.polynomial(p) for p in some)
                return self._over("max", bound, inside) if bound else f"{chr(92) * self.latex}max({inside})"
        raise AssertionError(body[0])

    def _right(self, body: tuple[Any, ...], result: Polynomial) -> str:
        match body:
            case ("content", _, _, m, q, rest):
                return f"{self.writer.term(m, q)} * ({self.writer.polynomial(rest)})"
            case ("square", _, root):
                return f"({self.writer.polynomial(root)})^2"
            case ("largest", bound, _, LargestParts(summand, factor, name, inner)):
                inside = self.writer.polynomial(inner)
                inside = self._over("max", bound, inside) if bound else inside
                inside = f"{name}({inside})" if name else inside
                return f"{self.writer.polynomial(summand)} + ({self.writer.polynomial(factor)}) * ({inside})"
        return self.writer.polynomial(result)

    def _over(self, head: str, bound: Iterable[int], body: str) -> str:
        if self.latex:
            names = ", ".join(f"{self.writer.digit(d)} < {self.tensors.extent[d]}" for d in sorted(bound))
            return rf"\{head}_{{{names}}} {body}"
        names = ", ".join(f"{self.writer.digit(d)}<{self.tensors.extent[d]}" for d in sorted(bound))
        return f"{head}[{names}]({body})"

    def _end(self, multiplier: Monomial | None) -> str:
        if multiplier is None:
            return "The normal forms differ: nothing is proved."
        if not multiplier:
            return "The two are the same term."
        factor = self.writer.term(multiplier, 1)
        return f"The difference of the two, multiplied by the divisors {factor}, is 0."


def _name(body: tuple[Any, ...]) -> str:
    match body:
        case ("unary" | "binary", name):
            return str(name)
        case ("scale" | "offset" as kind, value):
            return f"{kind} by {value}"
        case ("sum" | "max" | "running_max" | "carry" as kind, axis, *_):
            return f"{kind} over dim {axis}"
        case ("input", number):
            return f"input {number}"
        case ("reshape" | "transpose" as kind, numbers):
            return f"{kind} to {list(numbers)}"
        case (kind, *_):
            return {"fold": "merge digits", "split": "split a digit", "rename": "rename digits"}.get(kind, str(kind))
    raise AssertionError(body)
