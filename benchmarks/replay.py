"""Compare what the examples give with what they gave, byte for byte: for changes that must not change any result.

    .venv/bin/python -m benchmarks.replay [--update] [--out DIR] [--only attn ...]

Every example is searched at batch 1 and seed 0, and every fifth program of the corpus; kernels of the best candidates
are built. The SHA-256 of every µGraph, proof object, plan, launch and CUDA text, and of all certificates of a
candidate together, is compared with the table in replay.sha256; machine code is not, which is the compiler's. What is
new, gone or different is named.

Exit codes: 0 all equal, 1 not.

With --update the table is written instead of compared.

Options:
  --update           write the table instead of comparing with it
  --out DIR          an empty directory for the runs, kept; a temporary one if left out
  --only PROGRAM...  these programs alone
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.corpus import files
from benchmarks.harness import ROOT, command, parser_of
from mirage_formal.codegen.executable import LAUNCH_FILE

TABLE = Path(__file__).with_suffix(".sha256")
#: What is compared. Logs are not: they hold times.
PATTERNS = (
    "mugraph.json",
    "proof/*.smt2",
    "proof/equivalence.json",
    "stabilized.json",
    "kernels/*/equivalence.json",
    "kernels/*/*.cu",
    "plan.json",
    LAUNCH_FILE,
    "programs.json",
    "obligations.smt2.gz",
)
COUNT = 3
#: One of so many programs of the corpus is searched.
_EVERY = 5


def programs() -> list[Path]:
    """Return the files of the programs: examples but notebooks, and a part of the corpus."""
    examples = [path for path in sorted((ROOT / "examples").glob("*.py")) if not path.stem.startswith("tour")]
    return examples + files()[::_EVERY]


def made(out: Path, only: list[str]) -> dict[str, str]:
    """Search the programs, build kernels, and return the digests of all that."""
    variables = {**os.environ, "MIRAGE_BATCH": "1"}
    for program in programs():
        if only and program.stem not in only:
            continue
        print(program.stem, flush=True)
        search = command("mirage_formal.search", program, "--seed", 0, "--no-cache", "--out", out / program.stem)
        subprocess.run(search, cwd=ROOT, env=variables, check=True, stdout=subprocess.DEVNULL)
    runs = sorted({path.parent for path in out.rglob("run.json")})
    build = command("mirage_formal.kernel_build", *runs, "--count", COUNT)
    subprocess.run(build, cwd=ROOT, stdout=subprocess.DEVNULL)
    return digests(out)


def digests(out: Path) -> dict[str, str]:
    """Digests of what runs hold, by path; a candidate's certificates have one together."""
    found: dict[str, list[str]] = {}
    for path in sorted(out.rglob("*")):
        if path.is_file() and any(path.match(pattern) for pattern in PATTERNS):
            name = path.with_name("*.smt2") if path.suffix == ".smt2" else path
            found.setdefault(str(name.relative_to(out)), []).append(hashlib.sha256(content(path)).hexdigest())
    return {
        name: all_[0] if len(all_) == 1 else hashlib.sha256(" ".join(all_).encode()).hexdigest()
        for name, all_ in found.items()
    }


def content(path: Path) -> bytes:
    """A file's bytes; of a compressed file what was compressed, of launches all but what the compiler decides."""
    data = path.read_bytes()
    if path.name == LAUNCH_FILE:
        record = json.loads(data)
        for launch in record["launches"]:
            launch.pop("cubins", None)
        data = json.dumps(record, sort_keys=True).encode()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def table() -> dict[str, str]:
    """The digests of replay.sha256 by path."""
    rows = (line.split("  ", 1) for line in TABLE.read_text(encoding="utf-8").splitlines())
    return {path: digest for digest, path in rows}


def main() -> int:
    """The command line."""
    parser = parser_of(__doc__)
    given = parser.parse_args()
    if given.update and given.only:
        parser.error("--update writes the whole table: leave out --only")
    with tempfile.TemporaryDirectory() as temporary:
        found = made(given.out or Path(temporary), given.only)
    if given.update:
        TABLE.write_text("".join(f"{digest}  {path}\n" for path, digest in sorted(found.items())), encoding="utf-8")
        print(f"{len(found)} digests written to {TABLE.relative_to(ROOT)}")
        return 0
    before = {path: digest for path, digest in table().items() if not given.only or path.split("/")[0] in given.only}
    different = [path for path in sorted(before.keys() | found.keys()) if before.get(path) != found.get(path)]
    for path in different:
        print(f"{'gone' if path not in found else 'new' if path not in before else 'different'}: {path}")
    print(f"{len(before) - len(set(different) & set(before))} of {len(before)} entries equal, {len(different)} not")
    return 1 if different or not found else 0


if __name__ == "__main__":
    sys.exit(main())
