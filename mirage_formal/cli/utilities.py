"""Common parts of all commands: kinds of options, JSON answers, and printing of user mistakes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Final, NoReturn

import msgspec
import typer

from mirage_formal.support import options
from mirage_formal.support.errors import MirageError, SpaceError
from mirage_formal.support.guard import OPTIONS_HINT, print_mistake, run_main

#: How every command of typer is set up.
STYLE: Final[dict[str, Any]] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # brackets in texts are brackets
}


def value_parser(where: str, kind: Any) -> Callable[[Any], Any]:
    """Return a parser of an option whose values are of a type of ``mirage_formal.support.options``."""
    return lambda typed: options.parse_value(where, typed, kind)


def option(name: str, metavar: str, help: str, default: str | None = None, **more: Any) -> Any:
    """Return an option with a description of its values; ``default`` is shown where there is no default value."""
    return typer.Option(name, metavar=metavar, help=help, show_default=default or True, **more)


def count_option(name: str, help: str, default: str | None = None) -> Any:
    """Return an option that takes a whole number from 1 up."""
    return option(name, "N", f"{help}; 1 or more.", default, parser=value_parser(name, options.Count))


def amount_option(name: str, metavar: str, help: str, default: str | None = None) -> Any:
    """Return an option that takes a positive number."""
    return option(name, metavar, f"{help}; above 0.", default, parser=value_parser(name, options.Amount))


def seed_option(help: str) -> Any:
    """Return the option --seed."""
    return option("--seed", "N", f"{help}; 0 or more.", parser=value_parser("--seed", options.Natural))


def flag_option(name: str, help: str) -> Any:
    """Return a flag, which is off by default."""
    return typer.Option(name, help=help, show_default="off")


def choice_option(name: str, choices: Sequence[str], help: str) -> Any:
    """Return an option that takes one of some words, with shell completion."""
    one = value_parser(name, options.word_type(choices))
    return option(name, "|".join(choices), help, parser=one, autocompletion=lambda: list(choices))


def reject_options(given: Mapping[str, object], needed: str) -> None:
    """Refuse options that another one makes meaningless.

    Args:
        given: Values of options by name; those that were not given are false.
        needed: What they need, as "--backend triton".

    Raises:
        SpaceError: One is given; names it.
    """
    for name, value in given.items():
        if value:
            raise SpaceError(f"expected it with {needed} only", where=name, hint="leave it out")


def add_options(command: Callable[..., Any], *kinds: type[msgspec.Struct]) -> Callable[..., Any]:
    """Return a command with the options of some classes as parameters, before --json, in place of its ``**given``."""
    *own, _ = signature(command, eval_str=True).parameters.values()
    place = [one.name for one in own].index("json")
    made = [_parameter(one) for one in options.options_of(*kinds) if one.flag]
    vars(command)["__signature__"] = Signature([*own[:place], *made, *own[place:]])
    return command


def _parameter(one: options.Option) -> Parameter:
    kind: Any = list[str] if one.repeated else str
    made = option(one.flag, one.values, one.help, one.shown, parser=value_parser(one.flag, one.kind))
    if off := isinstance(one.default, bool):
        kind, made = bool, flag_option(one.flag, one.help)
    default = False if off else one.default
    return Parameter(one.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind | None, made])


#: The option --json, of every command that has something to answer.
Json = Annotated[bool, flag_option("--json", "Print one JSON object, see `mirage-formal tools schema answer`.")]
#: The option --progress; see ``run.progress.progress_display``.
ProgressMode = Annotated[
    str,
    choice_option(
        "--progress", ("auto", "bars", "json", "none"), "How progress is shown; auto: bars on a terminal only."
    ),
]


def answer(command: str, code: int, result: Any, error: MirageError | None = None) -> int:
    """Print the result of a command as JSON; return its exit code."""
    from mirage_formal.records.answer import answer_text

    print(answer_text(command, code, result, error))
    return code


def single_command(command: Callable[..., Any]) -> typer.Typer:
    """Return an application of one command."""
    alone = typer.Typer(**STYLE)
    alone.command()(command)
    return alone


def run_command(command: typer.Typer, name: str = "") -> NoReturn:
    """Run a command of this process under the guard, on the arguments of the process.

    Args:
        command: The command, or a group of commands.
        name: Its name, where it is one command.
    """
    run_main(lambda: invoke_command(command, sys.argv[1:], name))


def invoke_command(command: typer.Typer, arguments: Sequence[str], name: str = "", program: str | None = None) -> int:
    """Run a command on arguments; a user's mistake is printed, with exit code 2.

    Args:
        command: The command, or a group of commands.
        arguments: Arguments after its name.
        name: Its name, where it is one command.
        program: Program name in its help.

    Returns:
        The exit code.
    """
    try:
        code = typer.main.get_command(command)(list(arguments), prog_name=program, standalone_mode=False)
        return int(code or 0)
    except MirageError as error:
        mistake = error
    except Exception as error:
        if not hasattr(error, "format_message"):  # what typer says of a call; its class is that of typer's own click
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message(), file=sys.stderr)
            return 2
        mistake = _of_call(error)
    if "--json" in arguments:
        answer(name or _name(command, arguments), 2, None, mistake)
    print_mistake(mistake)
    return 2


def _of_call(error: Any) -> MirageError:
    """Convert an error of the command line parser to a MirageError."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mirage-formal"
    said = " ".join(str(error.format_message()).split())
    group = hasattr(getattr(context, "command", None), "commands")
    hint = f"{path} --help lists every command" if group else OPTIONS_HINT.format(path)
    return SpaceError(said[:1].lower() + said[1:].rstrip("."), where=path, hint=hint)


def _name(command: typer.Typer, arguments: Sequence[str]) -> str:
    """Return the name of the command that arguments begin with."""
    here: Any = typer.main.get_command(command)
    names = []
    for word in arguments:
        here = getattr(here, "commands", {}).get(word) or moved_commands(here).get(word)
        if here is None:
            break
        names.append(word)
    return " ".join(names).removeprefix("tools ")


def moved_commands(root: Any) -> dict[str, Any]:
    """Return the commands of ``tools``, which are also called by their own names."""
    commands: dict[str, Any] = getattr(getattr(root, "commands", {}).get("tools"), "commands", {})
    return commands
