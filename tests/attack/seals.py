"""Signing a forged run directory: every digest and seal computed again, by no code of the product.

Whoever forges evidence can do this, so nothing may rest on seals alone.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

_BLANK: Final = "0" * 64
_DEVICE: Final = ("numerics.json", "measure.json")


def digest(path: Path) -> str:
    """Sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def read(path: Path) -> Any:
    """A JSON file, or the lines of one."""
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in data.splitlines()]
    return json.loads(data)


def write(path: Path, value: Any) -> None:
    """Write what ``read`` gives."""
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in value))
    else:
        path.write_bytes(json.dumps(value, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")


def sealed(path: Path) -> None:
    """Fill in the seal of a file: the digest of its bytes with the seal's digits as zeros, which stand last."""
    record = read(path)
    record.pop("seal", None)
    record["seal"] = _BLANK
    write(path, record)
    blank = path.read_bytes()
    path.write_bytes(blank.replace(f'"seal": "{_BLANK}"\n}}\n'.encode(), f'"seal": "{digest(path)}"\n}}\n'.encode()))


def _files(root: Path) -> list[Path]:
    return sorted(p for p in root.rglob("*") if p.is_file() and not p.is_symlink())


def sign(root: Path) -> None:
    """Sign a run: inner digests, then manifests from the innermost to the summary.

    What was edited so that it cannot be read any more is left as it is.
    """
    for directory in sorted((root / "candidates").glob("*/")):
        _quietly(_sign_candidate, directory)
    for directory in sorted((root / "kernels").glob("*/")):
        _quietly(_sign_kernels, directory)
    _quietly(_sign_run, root)


def _quietly(sign_: Any, path: Path) -> None:
    try:
        sign_(path)
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError):
        return


def _named(value: Any, root: Path) -> None:
    """Wherever a file is named beside a digest, the digest is that of the file."""
    if isinstance(value, dict):
        for key in ("file", "source"):
            name = value.get(key)
            if isinstance(name, str) and "sha256" in value and (root / name).is_file():
                value["sha256"] = digest(root / name)
        for inner in value.values():
            _named(inner, root)
    elif isinstance(value, list):
        for inner in value:
            _named(inner, root)


def _sign_candidate(root: Path) -> None:
    records = read(root / "proof.jsonl")
    before = json.dumps(records)
    _named(records, root)
    if json.dumps(records) != before:
        write(root / "proof.jsonl", records)
    _sign_manifest(root)


def _sign_manifest(root: Path, apart: tuple[str, ...] = ()) -> None:
    path = root / "manifest.json"
    record = read(path)
    own = {p.relative_to(root).as_posix(): digest(p) for p in _files(root) if p != path}
    record["files"] = {name: code for name, code in own.items() if name not in apart}
    write(path, record)
    sealed(path)


def _sign_kernels(root: Path) -> None:
    record = read(root / "launch.json")
    before = json.dumps(record)
    _named(record, root)
    if json.dumps(record) != before:
        write(root / "launch.json", record)
    _sign_manifest(root, _DEVICE)
    for name in _DEVICE:
        if (root / name).is_file():
            device = read(root / name)
            device["kernels"] = digest(root / "manifest.json")
            write(root / name, device)
            sealed(root / name)


def _sign_run(root: Path) -> None:
    path = root / "summary.json"
    record = read(path)
    own = {p.relative_to(root).as_posix(): digest(p) for p in _files(root) if p != path}
    record["manifest"] = {name: code for name, code in own.items() if not name.startswith("kernels/")}
    write(path, record)
    sealed(path)


__all__ = ["read", "sign", "write"]
