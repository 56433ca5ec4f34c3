"""The REPL on a real terminal; ``tests/command`` has it against a model server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.invocation import COMMAND, processes_below
from tests.terminal import Terminal, open_terminal

SKIP = "--dangerously-skip-permissions"


@contextmanager
def opened(command: Command, *flags: str, **environment: str) -> Iterator[Terminal]:
    settings = {**command.environment, **environment}
    with open_terminal(
        [*COMMAND, *flags], cwd=command.directory, environment=settings, rows=40, columns=90
    ) as terminal:
        before = terminal.settings()
        terminal.wait_for("\n>")
        yield terminal
        terminal.wait_ended()
        assert terminal.settings() == before
        assert "Traceback" not in terminal.text()


def sleeps(command: Command) -> bool:
    return "sleep 600" in processes_below(command.directory)


def pid_of(command: Command) -> int:
    """The one process of the command itself."""
    (owner,) = [int(entry.name) for entry in Path("/proc").iterdir() if _is_command(entry, command)]
    return owner


def _is_command(entry: Path, command: Command) -> bool:
    if not entry.name.isdecimal():
        return False
    try:
        line, where = (entry / "cmdline").read_bytes(), (entry / "cwd").readlink()
    except OSError:
        return False
    return line.startswith("\0".join(COMMAND).encode()) and where == command.directory


def test_several_lines_by_backslash_by_escape_and_by_paste(command: Command) -> None:
    with opened(command) as terminal:
        terminal.send("one\\\r")
        terminal.send("two")
        terminal.press("alt-enter")
        terminal.send("\x1b[200~three\nfour\x1b[201~")
        terminal.press("enter")
        terminal.wait_for("you said: one\ntwo\nthree\nfour")
        terminal.press("ctrl-d")
        assert terminal.wait_ended() == 0


def test_what_was_asked_before_is_in_the_history(command: Command) -> None:
    with opened(command) as terminal:
        terminal.enter("remember me")
        terminal.wait_for("you said: remember me")
        terminal.enter("/exit")
    with opened(command) as terminal:
        terminal.send("x")  # once a key is shown, the history has been read
        terminal.wait_for("> x")
        terminal.press("backspace", "up", "up", "enter")
        terminal.wait_for("you said: remember me")
        terminal.press("ctrl-d")
    assert (command.data / "history").stat().st_mode & 0o777 == 0o600


def test_commands_tell_how_things_stand(command: Command) -> None:
    with opened(command) as terminal:
        terminal.enter("/agents")
        terminal.wait_for("no agents yet")
        terminal.enter("hello")
        terminal.wait_for("you said: hello")
        terminal.enter("/agents")
        terminal.wait_for("agent.1  completed  $0.0000  hello")
        terminal.enter("/cost")
        terminal.wait_for("session ", " in, ")
        terminal.enter("/nope")
        terminal.wait_for("there is no command /nope")
        terminal.enter("/help")
        terminal.wait_for("/resume [ID]")
        terminal.enter("/usr/bin is a path")
        terminal.wait_for("you said: /usr/bin is a path")
        terminal.enter("/exit")
        assert terminal.wait_ended() == 0


def test_resume_lists_sessions_and_goes_on_with_one(command: Command) -> None:
    session = command.ask("long ago")["session_id"]
    with opened(command) as terminal:
        terminal.enter("/resume")
        terminal.wait_for(session, "long ago")
        terminal.enter("/resume nope")
        terminal.wait_for("no agent answers to 'nope'")
        terminal.enter(f"/resume {session[:13]}")
        terminal.wait_for(f"session {session}")
        terminal.enter("and now")
        terminal.wait_for("you said: and now")
        terminal.press("ctrl-d")
        assert terminal.wait_ended() == 0
    assert [each["session_id"] for each in command.listed()] == [session], "the unused session left no store"
    assert "> and now" in command.run("show", session).stdout.decode()


def test_in_manual_mode_a_person_is_asked_and_sees_what_will_run(command: Command) -> None:
    with opened(command) as terminal:
        terminal.send("run printf '\\033[8m'; echo no-$((40+2))\r")
        terminal.wait_for("agent.1 wants to run bash", "echo no-$((40+2))", "allow?")
        terminal.send("x\r")
        terminal.send("n")
        terminal.wait_for("refused by the person")
        assert "no-42" not in terminal.text()
        terminal.enter("run echo yes-$((40+2))")
        terminal.wait_until(lambda: terminal.text().count("allow?") == 2, "the question")
        terminal.send("a")
        terminal.wait_for("the tool said: yes-42")
        terminal.enter("run echo always-$((40+2))")
        terminal.wait_for("the tool said: always-42")
        assert terminal.text().count("allow?") == 2
        terminal.press("ctrl-d")


def test_ctrl_c_at_a_question_says_no_and_interrupts(command: Command) -> None:
    with opened(command) as terminal:
        terminal.enter("run echo no-$((40+2))")
        terminal.wait_for("allow?")
        terminal.press("ctrl-c")
        terminal.wait_for("interrupted; the session goes on")
        terminal.enter("still there?")
        terminal.wait_for("you said: still there?")
        assert "no-42" not in terminal.text()
        terminal.press("ctrl-d")


def test_ctrl_c_interrupts_the_turn_with_its_children_and_keeps_what_was_typed(command: Command) -> None:
    with opened(command, SKIP) as terminal:
        terminal.enter("family")
        terminal.wait_for("+ kid.3")
        terminal.wait_until(lambda: sleeps(command), "the child's shell")
        terminal.send("typed ahead")
        terminal.press("ctrl-c")
        terminal.wait_for("interrupted; the session goes on", "> typed ahead")
        assert not sleeps(command)
        terminal.press("enter")
        terminal.wait_for("you said: ", "typed ahead")
        terminal.press("ctrl-d")


def test_ctrl_c_at_the_prompt_drops_the_line_and_stays(command: Command) -> None:
    with opened(command) as terminal:
        terminal.send("half a thought")
        terminal.press("ctrl-c")
        terminal.enter("whole")
        terminal.wait_for("you said: whole")
        terminal.press("ctrl-d")
        assert terminal.wait_ended() == 0


def test_what_a_model_writes_cannot_move_the_cursor(command: Command) -> None:
    with opened(command) as terminal:
        terminal.enter("odd")
        terminal.wait_for("]0;title teaé")
        assert b"\x1b]0;" not in terminal.output
        terminal.press("ctrl-d")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_from_elsewhere_at_the_prompt_ends_it_and_restores_the_terminal(
    command: Command, number: int, code: int
) -> None:
    with opened(command) as terminal:
        os.kill(pid_of(command), number)
        assert terminal.wait_ended() == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_in_a_tool_ends_it_with_its_processes(command: Command, number: int, code: int) -> None:
    with opened(command, SKIP) as terminal:
        terminal.enter("run sleep 600")
        terminal.wait_until(lambda: sleeps(command), "the shell")
        os.kill(pid_of(command), number)
        assert terminal.wait_ended() == code
        assert not sleeps(command)
    assert command.listed()[0]["status"] == "interrupted"


def test_c_goes_on_with_an_interrupted_turn_at_once(command: Command) -> None:
    with opened(command, SKIP) as terminal:
        terminal.enter("run sleep 600")
        terminal.wait_until(lambda: sleeps(command), "the shell")
        os.kill(pid_of(command), signal.SIGTERM)
        terminal.wait_ended()
    with opened(command, "-c") as terminal:
        terminal.wait_for("outcome unknown")
        terminal.press("ctrl-d")


def test_a_stop_at_the_prompt_and_in_a_turn_is_survived(command: Command) -> None:
    with opened(command, SKIP) as terminal:
        pid = pid_of(command)
        terminal.enter("run sleep 0.5; echo done-$((40+2))")
        terminal.wait_for("• bash")
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        terminal.wait_for("done-42\n")
        terminal.enter("after")
        terminal.wait_for("you said: after")
        terminal.press("ctrl-d")


def test_the_first_prompt_may_stand_on_the_command_line(command: Command) -> None:
    with opened(command, "hello from outside") as terminal:
        terminal.wait_for("you said: hello from outside")
        terminal.press("ctrl-d")


def test_a_terminal_that_can_do_nothing_but_lines_is_enough(command: Command) -> None:
    with opened(command, SKIP, TERM="dumb") as terminal:
        terminal.enter("one\\")
        terminal.enter("two")
        terminal.wait_for("you said: one\ntwo")
        terminal.enter("run sleep 600")
        terminal.wait_until(lambda: sleeps(command), "the shell")
        terminal.press("ctrl-c")
        terminal.wait_for("interrupted; the session goes on")
        assert not sleeps(command)
        assert b"\x1b[" not in terminal.output
        terminal.press("ctrl-d")
        assert terminal.wait_ended() == 0


def test_a_narrow_window_and_a_new_size_are_no_trouble(command: Command) -> None:
    with opened(command) as terminal:
        terminal.resize(12, 30)
        terminal.enter("a prompt that is longer than thirty columns")
        terminal.wait_for("you said:")
        terminal.press("ctrl-d")


def test_without_a_terminal_it_says_what_to_do(command: Command) -> None:
    done = command.run()

    assert done.returncode == 2
    assert b"nanotrio -p" in done.stderr


def test_a_model_that_fails_is_told_and_the_talk_goes_on(command: Command) -> None:
    with opened(command) as terminal:
        terminal.enter("broken")
        terminal.wait_for("failed: ", "no such thing")
        terminal.enter("better")
        terminal.wait_for("you said: better")
        terminal.press("ctrl-d")
        assert terminal.wait_ended() == 0
