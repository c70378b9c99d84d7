"""Axioms that a user adds to those of ``axioms/`` or switches off, as a value that is part of a run's identity.

Files of added axioms have the grammar of ``axioms/*.smt2``. They may declare the symbols of those files again and no
others. A fault is refused with its file and line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from mirage_formal.logic.axioms import AxiomSet, atoms_of, axiom_set, load_axioms, read_command
from mirage_formal.logic.sexpr import SExpr, format_sexpr, line_of, parse_located_sexprs, parse_sexprs
from mirage_formal.support.errors import FormatError, SpaceError

_HINT: Final = "functions are {}; every variable is bound by forall and occurs; mirage-formal tools docs axiom"


@dataclass(frozen=True, slots=True)
class AddedAxiom:
    """An axiom that a user has added.

    Attributes:
        name: Its name.
        text: Its statement, as one line of SMT-LIB.
        where: File and line; empty where the statement comes from the files of a run.
    """

    name: str
    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class AxiomChoice:
    """Axioms in force: those of ``axioms/`` without some of them, and added ones.

    Attributes:
        added: Added axioms, in the order of the files.
        without: Names of axioms of ``axioms/`` that are switched off, sorted.
    """

    added: tuple[AddedAxiom, ...] = ()
    without: tuple[str, ...] = ()

    @property
    def statements(self) -> tuple[str, ...]:
        """Return the statements of the added axioms."""
        return tuple(one.text for one in self.added)

    @property
    def complete(self) -> AxiomChoice:
        """Return the choice with no axiom switched off; certificates are instances of its axioms."""
        return replace(self, without=())


#: The axioms of ``axioms/`` alone.
USUAL_AXIOMS: Final = AxiomChoice()


def read_choice(files: Sequence[str], without: Sequence[str] = ()) -> AxiomChoice:
    """Read files of added axioms, and leave out the axioms of these names.

    Raises:
        FormatError: A file cannot be read, or a statement in it is malformed, uses an unknown function or a variable
            that is not bound, or has a name that is taken; names file and line.
        SpaceError: No axiom has a name in ``without``.
    """
    if not files and not without:
        return USUAL_AXIOMS
    usual = load_axioms()
    axioms, added = dict(usual.axioms), []
    for file in files:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError, ValueError) as error:
            raise FormatError(f"expected a file of axioms, got {error}", where=file) from None
        for command, position in parse_located_sexprs(text, file):
            where = f"{file}:{line_of(text, position)}"
            before, functions = set(axioms), set(usual.functions)
            try:
                read_command(command, axioms, functions, where)
            except FormatError as error:
                raise FormatError(error.what, where=where, hint=_hint(usual)) from None
            if unknown := functions - usual.functions:
                what = f"expected a function of abstract expressions, got {', '.join(sorted(unknown))}"
                raise FormatError(what, where=where, hint=_hint(usual))
            for name in axioms.keys() - before:
                if idle := sorted(dict(axioms[name].variables).keys() - atoms_of(axioms[name].body)):
                    what = f"axiom {name}: expected variables that occur in it, got {', '.join(idle)}"
                    raise FormatError(what, where=where, hint=_hint(usual))
                added.append(AddedAxiom(name, format_sexpr(command), where))
    if wrong := sorted(set(without) - axioms.keys()):
        what = f"expected the name of an axiom, got {', '.join(wrong)}"
        raise SpaceError(what, where="--without-axiom", hint="mirage-formal axioms lists them")
    off = tuple(sorted(set(without) & usual.axioms.keys()))
    return AxiomChoice(tuple(one for one in added if one.name not in without), off)


def stated_choice(statements: Sequence[str], where: str = "") -> AxiomChoice:
    """Return the choice that adds axioms by their statements, as they stand in the files of a run.

    Raises:
        FormatError: A statement is malformed.
    """
    axioms, added = dict(load_axioms().axioms), []
    for text in statements:
        before = set(axioms)
        for command in parse_sexprs(text, where):
            read_command(command, axioms, set(load_axioms().functions), where)
        added += [AddedAxiom(name, text) for name in axioms.keys() - before]
    return AxiomChoice(tuple(added))


def _hint(axioms: AxiomSet) -> str:
    return _HINT.format(", ".join(sorted(axioms.functions)))


@lru_cache(maxsize=8)
def axioms_in_force(choice: AxiomChoice) -> AxiomSet:
    """Return the axioms of a choice.

    Raises:
        FormatError: An added axiom is malformed.
    """
    usual = load_axioms()
    if choice == USUAL_AXIOMS:
        return usual
    axioms, functions, commands = dict(usual.axioms), set(usual.functions), commands_of(usual)
    for one in choice.added:
        for command in parse_sexprs(one.text, one.where):
            read_command(command, axioms, functions, one.where)
            commands.append(command)
    off = set(choice.without)
    kept = {name: axiom for name, axiom in axioms.items() if name not in off}
    commands = [command for command in commands if command[0] != "assert" or command[1][3] not in off]
    return axiom_set(kept, functions, commands, "\n".join([usual.text, *choice.statements]), "axioms")


def commands_of(axioms: AxiomSet) -> list[SExpr]:
    """Return the declarations and assertions of a set of axioms."""
    return [command for command in parse_sexprs(axioms.script.text) if command[0] not in ("set-logic", "check-sat")]


__all__ = [
    "USUAL_AXIOMS",
    "AddedAxiom",
    "AxiomChoice",
    "axioms_in_force",
    "commands_of",
    "read_choice",
    "stated_choice",
]
