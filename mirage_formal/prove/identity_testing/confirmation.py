"""Command that asks galois about all prime pairs: ``python -m mirage_formal.prove.identity_testing.confirmation``.

The table is ``prime_table.py`` beside this file. It is written again when the rule of ``primes.field_pair`` changes, or
when records are to name another version of galois.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mirage_formal.prove.identity_testing import primes

TABLE: Final = Path(__file__).with_name("prime_table.py")

_TEXT: Final = '''"""Table of galois's answers about the prime fields of fingerprints, so that no run has to load it.

Written by ``python -m mirage_formal.prove.identity_testing.confirmation``, which asks galois about every pair that
``primes.field_pair`` gives; tests ask it again.
"""

from __future__ import annotations

from typing import Final

#: The version of galois that was asked.
GALOIS: Final = "{version}"
#: By p: q, and the least primitive root of Z_p. galois found p and q prime.
PAIRS: Final[dict[int, tuple[int, int]]] = {{
{rows}
}}
'''


def table() -> str:
    """Return the text of ``prime_table.py``, from the galois that is installed.

    Raises:
        UnsupportedError: galois does not confirm a pair.
    """
    pairs = [primes.field_pair(bits) for bits in range(primes.MIN_BITS, primes.MAX_BITS + 1)]
    said = [primes.ask_galois(pair) for pair in pairs]
    rows = (f"    {pair.p}: ({pair.q}, {one.primitive_root})," for pair, one in zip(pairs, said, strict=True))
    return _TEXT.format(version=said[0].galois_version, rows="\n".join(rows))


def main() -> None:
    """Write the table."""
    TABLE.write_text(table())
    print(f"{TABLE} written")


if __name__ == "__main__":
    main()
