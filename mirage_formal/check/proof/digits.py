"""The mixed-radix lemma behind every split and fold, as SMT-LIB text for the solvers."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Final

_HEAD: Final = "(set-info :smt-lib-version 2.6)\n(set-info :status unsat)\n(set-logic QF_LIA)\n"


def mixed_radix_obligations(extents: tuple[int, ...]) -> Mapping[str, str]:
    """Return the mixed-radix lemma for these extents as texts that must be unsatisfiable.

    Sound: "injective" says that digits in range with equal numbers are equal, "onto" that every number below the
    product of the extents is the number of digits in range; so sums and largest values over all digits and over all
    numbers range over the same elements once.
    """
    strides = [prod(extents[i + 1 :]) for i in range(len(extents))]
    count = range(len(extents))

    def digits(name: str) -> str:
        return "".join(
            f"(declare-const {name}{i} Int)\n(assert (<= 0 {name}{i}))\n(assert (< {name}{i} {extents[i]}))\n"
            for i in count
        )

    def number(name: str) -> str:
        return f"(+ 0 {' '.join(f'(* {strides[i]} {name}{i})' for i in count)})"

    differ = " ".join(f"(not (= a{i} b{i}))" for i in count)
    injective = f"{digits('a')}{digits('b')}(assert (= {number('a')} {number('b')}))\n(assert (or false {differ}))\n"
    onto = f"(declare-const t Int)\n(assert (<= 0 t))\n(assert (< t {prod(extents)}))\n"
    for i in count:
        onto += f"(define-fun d{i} () Int (mod (div t {strides[i]}) {extents[i]}))\n"
    inside = " ".join(f"(<= 0 d{i}) (< d{i} {extents[i]})" for i in count)
    onto += f"(assert (not (and (= t {number('d')}) {inside})))\n"
    return {name: f"{_HEAD}{text}(check-sat)\n" for name, text in (("injective", injective), ("onto", onto))}
