"""What may stand on the command line, and what is said about what may not.

Parsing needs neither Trio nor the library, so that ``--help``, ``--version`` and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import difflib
import math
import uuid
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import msgspec

from .agent_arguments import add_agent_flags, agent_values, argument_text, refuse_two_modes
from .care_arguments import (
    ExportOptions,
    SqlOptions,
    StoreOptions,
    add_export,
    add_sql,
    add_store,
    made_options,
)
from .exits import CommandLineError
from .map_arguments import MapRunOptions, add_map

__all__ = ["AskedForHelp", "AskedForVersion", "DemoOptions", "InspectOptions", "Options", "RunOptions", "parse"]

DEFAULT_WAIT_SECONDS = 7_200.0

_LATER_FLAGS = {"--mcp-config": 1, "--add-dir": 1, "--fallback-model": 1, "--trust": 0}
"""Flags of the contract that this version does not have yet, and how many values each takes."""

_INSPECT = ("ls", "show", "tree")
_CARE = ("store", "export", "sql")
_LATER_COMMANDS = ("attach", "cancel", "host", "doctor")
_COMMANDS = (*_INSPECT, "map", "demo", *_CARE, *_LATER_COMMANDS)


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``nanotrio`` and ``nanotrio -p``."""

    prompt: str | None
    headless: bool
    output_format: str
    model: str | None
    store: str | None
    continue_newest: bool
    resume: str | None
    fork_session: bool
    session_id: str | None
    max_turns: int | None
    max_budget_usd: float | None
    max_wait_seconds: float
    json_schema: str | None
    """As given: the text of a schema, or the path of a file that holds one."""
    system_prompt: str | None
    append_system_prompt: str | None
    permission_mode: str | None
    allowed_tools: tuple[str, ...]
    denied_tools: tuple[str, ...]
    partial_messages: bool
    verbose: bool
    takeover: bool
    no_session: bool


class InspectOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``nanotrio ls``, ``show`` and ``tree``."""

    command: str
    id: str | None
    store: str | None
    json: bool
    all: bool


class DemoOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``nanotrio demo``."""

    agents: int
    store: str | None
    rest: tuple[str, ...]
    """What the demo itself makes of it, for the processes it starts."""


class AskedForHelp(msgspec.Struct, frozen=True):
    """``--help``."""

    text: str


class AskedForVersion(msgspec.Struct, frozen=True):
    """``--version``."""


Options: TypeAlias = (
    RunOptions
    | InspectOptions
    | DemoOptions
    | MapRunOptions
    | StoreOptions
    | ExportOptions
    | SqlOptions
    | AskedForHelp
    | AskedForVersion
)


class _HelpError(Exception):
    """``--help`` was met; carries the text out of argparse, which would print and exit by itself."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise CommandLineError(f"{' '.join(message.split())}; {self.prog} --help lists what there is")

    def print_help(self, file: Any = None) -> None:  # noqa: ARG002 - argparse's own signature
        raise _HelpError(self.format_help())


def _positive_int(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return value


def _positive_number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _uuid(text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a UUID") from None


def _filled(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the value is empty")
    return text


def _run_parser() -> _Parser:
    parser = _Parser(
        prog="nanotrio",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="An agent harness for swarms. Without -p it opens a prompt on the terminal.",
        epilog="commands:\n  nanotrio ls             list sessions\n  nanotrio show [ID]      print a conversation\n"
        "  nanotrio tree [ID]      print a tree of agents\n"
        "  nanotrio map ITEMS      put a prompt to an agent for each line, row or file\n"
        "  nanotrio export [ID]    print a session as JSON lines or Markdown\n"
        "  nanotrio sql QUERY      ask a row store\n"
        "  nanotrio store ACTION   check, repair, prune, copy or count a store\n"
        "  nanotrio demo           watch a swarm run, die and finish\n"
        "\nA session's ID is its UUID or the beginning of it; UUID/NAME.N is an agent in it.",
    )
    add = parser.add_argument
    add("prompt", nargs="*", help="what to do; standard input is added to it when it is not a terminal")
    add("-p", "--print", action="store_true", help="run without a terminal: print the result and exit")
    add("--output-format", choices=("text", "json", "stream-json"), default="text", help="of the result, with -p")
    add("--input-format", choices=("text", "stream-json"), default="text", help=argparse.SUPPRESS)
    add("--include-partial-messages", action="store_true", help="with stream-json: pieces of answers as they come")
    add("--model", type=_filled, help="for example anthropic/claude-sonnet-4-5, openai-chat/NAME, scripted/NAME")
    add("--store", type=_filled, metavar="URL", help="sqlite:PATH; without it each run has a file of its own")
    add("-c", "--continue", dest="continue_newest", action="store_true", help="go on with the newest session here")
    add("-r", "--resume", type=_filled, metavar="ID", help="go on with that session")
    add("--fork-session", action="store_true", help="with -c or -r: as a new session, from its last turn that ended")
    add("--session-id", type=_uuid, metavar="UUID", help="the id of the new session")
    add("--max-turns", type=_positive_int, metavar="N", help="model calls before the turn is ended")
    add("--max-budget-usd", type=_positive_number, metavar="USD", help="what the whole tree may cost")
    add(
        "--max-wait-seconds",
        type=_positive_number,
        metavar="S",
        default=DEFAULT_WAIT_SECONDS,
        help="with -p: how long to wait for the tree to settle (%(default)g)",
    )
    add("--json-schema", type=_filled, metavar="JSON", help="a schema, or a file of one, that the result must fit")
    add_agent_flags(parser)
    add("--no-session", action="store_true", help="keep nothing on disk")
    add("--no-host", action="store_true", help="run in this process; so far every run does")
    add("--verbose", action="store_true", help="with -p and text: tell what happens on standard error")
    add("--version", action="store_true", help="print the version and exit")
    for flag, values in _LATER_FLAGS.items():
        if values:
            add(flag, action="append", help=argparse.SUPPRESS)
        else:
            add(flag, action="store_true", help=argparse.SUPPRESS)
    return parser


def _command_of(argv: Sequence[str], parser: _Parser) -> tuple[str, list[str]] | None:
    """Find a command word: the first argument that is no flag and no flag's value."""
    with_value = {
        flag
        for action in parser._actions  # noqa: SLF001 - argparse has no public list of its flags
        for flag in action.option_strings
        if action.nargs is None and action.type
    }
    with_value |= {"--output-format", "--input-format", "--system-prompt", "--append-system-prompt"}
    with_value |= {"--allowedTools", "--allowed-tools", "--disallowedTools", "--disallowed-tools"}
    index = 0
    while index < len(argv):
        word = argv[index]
        if word in ("--", "-p", "--print"):
            return None
        if word.startswith("-") and word != "-":
            index += 2 if word in with_value else 1
            continue
        return (word, [*argv[:index], *argv[index + 1 :]]) if word in _COMMANDS else None
    return None


def parse(argv: Sequence[str]) -> Options:
    """Turn the arguments after the command's name into options.

    Raises:
        CommandLineError: in one line, what is wrong with which argument.
    """
    parser = _run_parser()
    try:
        command = _command_of(argv, parser)
        if command is None:
            return _run_options(parser, argv)
        name, rest = command
        if name in _LATER_COMMANDS:
            raise CommandLineError(f"nanotrio {name} is not in this version")
        if name in _CARE:
            return _care_options(name, rest)
        if name == "map":
            return _map_options(rest)
        return _demo_options(rest) if name == "demo" else _inspect_options(name, rest)
    except _HelpError as met:
        return AskedForHelp(str(met))


def _inspect_options(name: str, argv: Sequence[str]) -> InspectOptions:
    parser = _Parser(prog=f"nanotrio {name}", allow_abbrev=False)
    if name != "ls":
        what = "print its conversation" if name == "show" else "print the tree below it"
        parser.add_argument("id", nargs="?", type=_filled, help=f"{what}; without it, this folder's newest session")
    else:
        parser.add_argument("--all", action="store_true", help="every agent, not only the roots")
    parser.add_argument("--store", type=_filled, metavar="URL", help="that store alone")
    parser.add_argument("--json", action="store_true", help="for machines: one JSON object a line")
    found = parser.parse_args(argv)
    return InspectOptions(
        command=name,
        id=getattr(found, "id", None),
        store=found.store,
        json=found.json,
        all=getattr(found, "all", False),
    )


def _care_options(name: str, argv: Sequence[str]) -> Options:
    parser = _Parser(prog=f"nanotrio {name}", allow_abbrev=False)
    match name:
        case "store":
            add_store(parser, _filled, _Parser)
        case "export":
            add_export(parser, _filled)
        case _:
            add_sql(parser, _filled, _positive_int)
    return made_options(name, parser.parse_args(argv))


def _demo_options(argv: Sequence[str]) -> DemoOptions:
    parser = _Parser(prog="nanotrio demo", allow_abbrev=False)
    parser.add_argument("--agents", type=_positive_int, default=1_000, help="how many (%(default)s)")
    parser.add_argument("--store", type=_filled, metavar="URL", help="where to keep it")
    found, rest = parser.parse_known_args(argv)
    return DemoOptions(agents=found.agents, store=found.store, rest=tuple(rest))


def _map_options(argv: Sequence[str]) -> MapRunOptions:
    parser = _Parser(prog="nanotrio map", allow_abbrev=False)
    add_map(parser, _filled, _positive_int, _positive_number)
    found = parser.parse_args(argv)
    refuse_two_modes(found)
    given = {name: value for name, value in vars(found).items() if name in MapRunOptions.__struct_fields__}
    given |= {"prompt": argument_text(found.prompt), **agent_values(found)}
    return MapRunOptions(**given)


def _prompt(words: Sequence[str], *, headless: bool) -> str | None:
    if len(words) > 1:
        raise CommandLineError(
            f"one prompt is taken, and {len(words)} stand here ({words[0]!r}, {words[1]!r}, ...); put quotes around "
            "it, and give several tools as one value with commas"
        )
    if not words:
        return None
    if not headless and " " not in words[0]:
        near = difflib.get_close_matches(words[0], _COMMANDS, n=1, cutoff=0.6)
        if near:
            raise CommandLineError(f"there is no command {words[0]!r}; did you mean nanotrio {near[0]}?")
    return argument_text(words[0])


def _run_options(parser: _Parser, argv: Sequence[str]) -> Options:
    found = parser.parse_args(argv)
    if found.version:
        return AskedForVersion()
    for flag in _LATER_FLAGS:
        if getattr(found, flag[2:].replace("-", "_")):
            raise CommandLineError(f"{flag} is not in this version")
    if found.input_format != "text":
        raise CommandLineError("--input-format stream-json is not in this version")
    _refuse_contradictions(found)
    return RunOptions(
        prompt=_prompt(found.prompt, headless=found.print),
        headless=found.print,
        output_format=found.output_format,
        model=found.model,
        store=found.store,
        continue_newest=found.continue_newest,
        resume=found.resume,
        fork_session=found.fork_session,
        session_id=found.session_id,
        max_turns=found.max_turns,
        max_budget_usd=found.max_budget_usd,
        max_wait_seconds=found.max_wait_seconds,
        json_schema=found.json_schema,
        partial_messages=found.include_partial_messages,
        verbose=found.verbose,
        no_session=found.no_session,
        **agent_values(found),
    )


def _refuse_contradictions(found: argparse.Namespace) -> None:
    goes_on = "-c" if found.continue_newest else "-r" if found.resume else ""
    if found.continue_newest and found.resume:
        raise CommandLineError("-c and -r cannot go together: give -r with the session's id alone")
    if found.no_session:
        other = goes_on or ("--store" if found.store else "--takeover" if found.takeover else "")
        if other:
            raise CommandLineError(f"--no-session keeps nothing, so {other} cannot go with it")
    if found.fork_session and not goes_on:
        raise CommandLineError("--fork-session goes with -c or -r, which name the session to fork")
    if goes_on and found.session_id and not found.fork_session:
        raise CommandLineError(f"--session-id names a new session, so {goes_on} cannot go with it; add --fork-session")
    if not found.print:
        for flag, given in (
            ("--output-format", found.output_format != "text"),
            ("--include-partial-messages", found.include_partial_messages),
            ("--json-schema", found.json_schema),
        ):
            if given:
                raise CommandLineError(f"{flag} goes with -p")
    if found.include_partial_messages and found.output_format != "stream-json":
        raise CommandLineError("--include-partial-messages goes with --output-format stream-json")
    refuse_two_modes(found)
