"""Hostile SMT-LIB before our reader: refused, or a closed list of commands, printed anew as they stand."""

from __future__ import annotations

import atexit
import gzip
import random
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

from mirage_formal.logic.script import Script, parse_script
from mirage_formal.logic.session import discharge
from mirage_formal.support.errors import FormatError
from tests.attack import directories
from tests.attack.texts import STRINGS
from tests.attack.trial import Breach

#: All that may ever reach a solver: written apart from the reader, and coarser.
_COMMANDS: Final = re.compile(
    r"\((?:set-logic (?:QF_BV|QF_UF|QF_LIA|UFNIA)|set-info :(?:smt-lib-version 2\.6|status unsat)|check-sat"
    r"|declare-sort Expr 0|(?:declare-const|declare-fun|define-fun|assert) [^\"|;:\\]*(?: :named [\w.~-]+\))?)\)"
)
#: One trial in so many asks the solvers; the others end with the reader.
_ASKED: Final = 40


@cache
def _questions() -> tuple[str, ...]:
    """Certificates, digit lemmas and obligations, as a run has them."""
    found = {p.read_text() for root in directories.runs() for p in root.rglob("*.smt2")}
    for root in directories.runs():
        for path in root.rglob("*.smt2.gz"):
            found.update(gzip.decompress(path.read_bytes()).decode().split("(reset)\n"))
    return tuple(sorted(found))


@cache
def _canary() -> Path:
    """A directory that solvers are told to write to."""
    root = Path(tempfile.mkdtemp(prefix="canary-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    (root / "file").write_text("untouched")
    return root


def _commands() -> tuple[str, ...]:
    place = _canary() / "file"
    return (
        f'(set-option :regular-output-channel "{place}")(echo "TEXT")',
        f'(set-option :diagnostic-output-channel "{_canary() / "new"}")',
        f'(include "{place}")',
        "(set-option :produce-models true)",
        '(echo "unsat")',
        "(check-sat)",
        "(reset)",
        "(push 1)",
        "(exit)",
        "(get-model)",
        "(eval 1)",
        "(define-fun not ((x Bool)) Bool true)",
        "(define-fun and ((x Bool) (y Bool)) Bool false)",
        "(define-fun tid () (_ BitVec 8) (_ bv0 8))",
        "(define-fun-rec f ((x Int)) Int (f x))",
        "(declare-datatypes ((T 0)) (((a))))",
        "(declare-const |quoted symbol| Bool)",
        "(assert false)",
        "(assert (! false :named goal))",
        "(assert (let ((x true)) x))",
        "(assert (exists ((x Int)) (= x 0)))",
        "(set-logic ALL)",
        "(set-info :source |x|)",
        '(assert (= "a" "a"))',
        "(display 1)",
        "(simplify 1)",
        "()",
        "x",
        ")",
    )


def _hostile(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    command = rng.choice(_commands())
    match rng.randrange(11):
        case 0:
            lines.insert(at, command)
        case 1:
            lines[at] += command
        case 2:
            lines[at] = command + lines[at]
        case 3:
            lines[at] += f" ; {command}"
        case 4:
            lines[at] = f"; {command}\r{lines[at]}"
        case 5:
            del lines[at]
        case 6:
            lines.insert(at, rng.choice(lines))
        case 7:
            depth = rng.choice((50, 99, 101, 5_000, 500_000))
            lines[at] = "(assert " + "(not " * depth + "true" + ")" * depth + ")"
        case 8:
            place = rng.randrange(len(text) + 1)
            junk = rng.choice(
                ("(", ")", '"', "|", ";", ":", "\0", "\n", " ", "\t", "é", rng.choice(STRINGS), "9" * 500)
            )
            return text[:place] + junk + text[place:]
        case 9:
            symbols = re.findall(r"[A-Za-z~!@$%^&*_\-+=<>.?/0-9]+", text)
            return text.replace(rng.choice(symbols), rng.choice(symbols), 1) if symbols else text
        case _:
            lines[at] = lines[at].replace(" ", rng.choice(("  ", "\t", "\n", " ; x\n")), 1)
    return "\n".join(lines)


def text(rng: random.Random, number: int = 0) -> str:
    """One or two hostile changes of a question."""
    questions = _questions()
    changed = questions[number % len(questions)]
    for _ in range(rng.choice((1, 1, 2))):
        changed = _hostile(changed, rng)
    try:
        script = parse_script(changed, "file")
    except FormatError as error:
        if any(ord(c) < 32 and c != "\n" for c in str(error)) or len(str(error)) > 4000:
            raise Breach(f"the message {str(error)[:300]!r}") from error
        return "refused"
    _plain(script)
    if rng.randrange(_ASKED):
        return "read, and only plain commands"
    discharge(script, timeout_ms=500)
    if sorted(p.name for p in _canary().iterdir()) != ["file"] or (_canary() / "file").read_text() != "untouched":
        raise Breach(f"a solver has written a file: {changed[:600]!r}")
    return "asked, and no file was touched"


def _plain(script: Script) -> None:
    *lines, last = script.text.split("\n")
    if last or any(not _COMMANDS.fullmatch(line) for line in lines) or lines.count("(check-sat)") != 1:
        bad = next((line for line in lines if not _COMMANDS.fullmatch(line)), "no single question")
        raise Breach(f"for solvers: {bad[:300]!r}")


__all__ = ["text"]
