from __future__ import annotations

import pytest

from nanotrio_cli.arguments import AskedForHelp, AskedForVersion, DemoOptions, InspectOptions, RunOptions, parse
from nanotrio_cli.exits import CommandLineError


def run_options(*argv: str) -> RunOptions:
    options = parse(argv)
    assert isinstance(options, RunOptions)
    return options


@pytest.mark.parametrize(
    "argv",
    [
        ("-p", "hello", "--output-format", "json"),
        ("--output-format", "json", "-p", "hello"),
        ("-p", "--output-format", "json", "hello"),
        ("--output-format=json", "--print", "--", "hello"),
    ],
)
def test_the_prompt_may_stand_anywhere(argv: tuple[str, ...]) -> None:
    options = run_options(*argv)

    assert (options.prompt, options.headless, options.output_format) == ("hello", True, "json")


def test_without_a_prompt_it_is_left_to_standard_input() -> None:
    assert run_options("-p").prompt is None


def test_without_p_it_is_the_terminal_that_begins_with_the_prompt() -> None:
    options = run_options("explain this folder")

    assert (options.prompt, options.headless) == ("explain this folder", False)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (("--nope",), "--nope"),
        (("-p", "x", "--max-turns", "0"), "--max-turns"),
        (("-p", "x", "--max-turns", "two"), "--max-turns"),
        (("-p", "x", "--max-budget-usd", "nan"), "--max-budget-usd"),
        (("-p", "x", "--max-budget-usd", "-1"), "--max-budget-usd"),
        (("-p", "x", "--max-wait-seconds", "inf"), "--max-wait-seconds"),
        (("-p", "x", "--session-id", "7"), "UUID"),
        (("-p", "x", "--output-format", "yaml"), "--output-format"),
        (("-p", "x", "--permission-mode", "yolo"), "bypassPermissions"),
        (("-p", "x", "--model", ""), "--model"),
        (("-p", "one", "two"), "one prompt"),
        (("-c", "-r", "abcd"), "-c and -r"),
        (("-c", "--no-session"), "--no-session"),
        (("-c", "--session-id", "00000000-0000-0000-0000-000000000000"), "--session-id"),
        (("--json-schema", "{}"), "-p"),
        (("-p", "x", "--include-partial-messages"), "stream-json"),
        (("-p", "x", "--dangerously-skip-permissions", "--permission-mode", "plan"), "contradict"),
        (("-p", "x", "--allowedTools", "Bash(git:*)"), "rules"),
        (("-p", "x", "--allowedTools", " "), "empty"),
        (("sho",), "show"),
        (("ls", "--nope"), "--nope"),
        (("tree", "a", "b"), "b"),
        (("demo", "--agents", "0"), "--agents"),
        (("-p", "x", "--fork-session"), "-c or -r"),
        (("store",), "check|repair"),
        (("store", "look", "sqlite:x"), "look"),
        (("store", "copy", "sqlite:x"), "NEW_URL"),
        (("store", "prune", "sqlite:x"), "--older-than"),
        (("store", "prune", "sqlite:x", "--older-than", "soon"), "30d"),
        (("sql", "SELECT 1"), "--store"),
        (("sql", "--store", "sqlite:x"), "QUERY"),
        (("export", "--format", "xml"), "xml"),
        (("-p", "x", "-c", "--session-id", "01234567-89ab-cdef-0123-456789abcdef"), "--fork-session"),
    ],
)
def test_a_mistake_is_named_in_one_line(argv: tuple[str, ...], told: str) -> None:
    with pytest.raises(CommandLineError) as caught:
        parse(argv)

    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "argv",
    [
        ("-p", "x", "--mcp-config", "f"),
        ("-p", "x", "--add-dir", "d"),
        ("-p", "x", "--fallback-model", "m"),
        ("-p", "x", "--trust"),
        ("-p", "--input-format", "stream-json"),
        ("attach", "abcd"),
        ("host", "status"),
        ("doctor",),
    ],
)
def test_what_comes_later_is_said_to_come_later(argv: tuple[str, ...]) -> None:
    with pytest.raises(CommandLineError, match="not in this version"):
        parse(argv)


def test_tools_are_listed_with_commas_blanks_or_many_flags() -> None:
    options = run_options("-p", "x", "--allowedTools", "Bash, read Edit", "--allowedTools", "write")

    assert options.allowed_tools == ("Bash", "read", "Edit", "write")


def test_a_command_word_is_one_only_where_it_is_no_prompt_and_no_value() -> None:
    assert isinstance(parse(["ls"]), InspectOptions)
    assert run_options("-p", "ls").prompt == "ls"
    assert run_options("--model", "ls", "-p", "x").model == "ls"
    found = parse(["--store", "sqlite:x.db", "show", "abcd", "--json"])
    assert found == InspectOptions(command="show", id="abcd", store="sqlite:x.db", json=True, all=False)


def test_the_demo_gets_what_it_alone_knows() -> None:
    assert parse(["demo", "--agents", "7", "--stage", "2"]) == DemoOptions(agents=7, store=None, rest=("--stage", "2"))


def test_help_and_version_are_values() -> None:
    found = parse(["--help"])
    assert isinstance(found, AskedForHelp)
    assert "--max-budget-usd" in found.text
    assert parse(["--version"]) == AskedForVersion()


def test_bytes_that_are_no_text_are_replaced_in_a_prompt() -> None:
    assert run_options("-p", "tea\udce9 \u00e9").prompt == "tea\ufffd \u00e9"
