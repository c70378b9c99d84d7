"""Times that are kept with the tables: each says of what kernel it is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from mirage_formal.autotune.plans import TuningDirectory
from tests.kit.paths import REPOSITORY

DIGEST = re.compile(r"[0-9a-f]{64}")


def test_every_time_says_of_what_it_is(tmp_path: Path) -> None:
    """One without the digest of its kernel's text would count for no kernel; one with a bad line would be left out."""
    directory = REPOSITORY / "benchmarks" / "times"
    files = sorted(directory.glob("*.jsonl"))
    assert files
    for path in files:
        place = TuningDirectory(tmp_path)
        shutil.copy(path, place.times_path(path.stem))
        times = place.times(path.stem)
        assert len(times) == len(path.read_text().splitlines()) - 1  # the first one says of which GPU they are
        for one in times.values():
            assert all(map(DIGEST.fullmatch, (one.key, one.text, one.code)))
            assert one.us > 0 or one.failed
            assert one.compiler
