"""Square roots of rationals in one normal form, without factoring large numbers.

Small primes are divided out. The cofactor is tested for three properties only: whether it is a square, whether it
shares a divisor with another radicand (Euclid's algorithm), and whether the square of such a divisor divides it. The
resulting numbers are pairwise coprime and no squares, so the roots of products of different ones are linearly
independent over the rationals. Equal values have one form, as if all numbers had been factored.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from math import gcd, isqrt
from typing import Final

#: Primes below this are divided out.
SMALL: Final = 1_000


class SquareRoots:
    """The square roots of one derivation; it collects the bases needed to write them all in one form.

    Sound: n = s^2 r for every pair that ``split`` returns, whatever the bases are. Only whether two forms of one number
    are the same depends on the bases.

    Args:
        numbers: Numbers whose squares, and the squares of whose common divisors, are taken out of roots.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self.bases = coprime_base(map(_remove_small_primes, numbers))
        self._found: dict[int, tuple[int, int]] = {}
        self._small: set[int] = set()
        self._large: set[int] = set()

    def split(self, n: int) -> tuple[int, int]:
        """Return (s, r) with n = s^2 * r."""
        found = self._found.get(n)
        if found is None:
            s, r, rest = self._divided(n)
            whole = isqrt(rest)
            if rest > 1:
                self._large.add(whole if whole * whole == rest else rest)
            found = self._found[n] = (s * whole, r) if whole * whole == rest else (s, r * rest)
        return found

    def _divided(self, n: int) -> tuple[int, int, int]:
        """Return (s, r, rest) with n = s^2 * r * rest, r a product of different bases and rest without any base."""
        s, r = 1, 1
        for base in (*primes(), *self.bases):
            if n % base == 0:
                if base < SMALL:
                    self._small.add(base)
                while n % (base * base) == 0:
                    n, s = n // (base * base), s * base
                if n % base == 0:
                    n, r = n // base, r * base
            if n == 1:
                break
        return s, r, n

    def refined(self) -> SquareRoots | None:
        """Return Radicals with which the same numbers have smaller forms; None if their forms cannot change."""
        better = SquareRoots((*self.bases, *self._large))
        changed = any(better.split(n) != found for n, found in self._found.items())
        return better if changed else None

    def table(self) -> tuple[int, ...]:
        """Return all bases that divide a number that was seen, for the proof."""
        large = coprime_base((*self.bases, *self._large))
        return (*sorted(self._small), *(base for base in large if any(n % base == 0 for n in self._found)))


def coprime_base(numbers: Iterable[int]) -> tuple[int, ...]:
    """Return pairwise coprime numbers above 1, none a square, whose products include the given numbers."""
    out: list[int] = []
    stack = sorted(numbers)
    while stack:
        n = stack.pop()
        while n > 1 and isqrt(n) ** 2 == n:
            n = isqrt(n)
        if n == 1:
            continue
        for at, other in enumerate(out):
            common = gcd(n, other)
            if common > 1:
                del out[at]
                stack += [common, n // common, other // common]
                break
        else:
            out.append(n)
    return tuple(sorted(out))


def _remove_small_primes(n: int) -> int:
    """Return a number without its small prime factors."""
    for p in primes():
        while n > 1 and n % p == 0:
            n //= p
    return n


@cache
def primes() -> tuple[int, ...]:
    """Return the primes below ``SMALL``."""
    return tuple(n for n in range(2, SMALL) if all(n % d for d in range(2, isqrt(n) + 1)))
