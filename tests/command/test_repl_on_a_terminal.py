"""The REPL as a person meets it: on a real terminal, against a model server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.invocation import COMMAND, environment_in, processes_below
from tests.servers.server_process import ServerProcess, server_process
from tests.terminal import Terminal, open_terminal

MODEL = "anthropic/claude-sonnet-4-5"
PROMPT_SIGN = ">"


@contextmanager
def _repl(tmp_path: Path, server: ServerProcess, *flags: str) -> Iterator[tuple[Terminal, Path]]:
    directory = tmp_path / "work"
    directory.mkdir(exist_ok=True)
    store = f"sqlite:{tmp_path / 'swarm.db'}"
    command = [*COMMAND, "--model", MODEL, "--store", store, "--dangerously-skip-permissions", *flags]
    environment = environment_in(tmp_path / "home", server.environment())
    with open_terminal(command, cwd=directory, environment=environment, rows=40, columns=100) as terminal:
        before = terminal.settings()
        terminal.wait_for(PROMPT_SIGN)
        yield terminal, directory
        terminal.wait_ended()
        assert terminal.settings() == before
        assert "Traceback" not in terminal.text()


def test_ask_interrupt_ask_again_quit_and_resume(tmp_path: Path) -> None:
    with server_process("terminal", tmp_path / "requests.jsonl") as server:
        with _repl(tmp_path, server) as (terminal, directory):
            terminal.enter("please stream")
            terminal.wait_for("word3")
            assert "finished-streaming" not in terminal.text(), "the answer shows while it comes"
            terminal.wait_for("finished-streaming")

            terminal.enter("now sleep")
            terminal.wait_until(lambda: "sleep 600" in processes_below(directory), "the shell to sleep")
            terminal.press("ctrl-c")
            terminal.wait_until(lambda: not _sleeps(directory), "the shell to be gone", seconds=5)

            terminal.enter("are you there?")
            terminal.wait_for("You said: are you there?")

            assert "agent.1" not in terminal.text()
            terminal.enter("/agents")
            terminal.wait_for("agent.1  completed")
            terminal.enter("/exit")
            assert terminal.wait_ended() == 0

        with _repl(tmp_path, server, "-c") as (terminal, _):
            terminal.enter("and now?")
            terminal.wait_for("You said: and now?")
            terminal.press("ctrl-d")
            assert terminal.wait_ended() == 0

        assert not [seen.problem for seen in server.refusals()]
        last = server.requests()[-1].body
        assert b"please stream" in last, "the resumed session knows what was said before"


def _sleeps(directory: Path) -> bool:
    return any("sleep 600" in line for line in processes_below(directory))


def test_a_terminal_that_goes_away_ends_the_command_and_its_processes(tmp_path: Path) -> None:
    with server_process("terminal", tmp_path / "requests.jsonl") as server:
        directory = tmp_path / "work"
        directory.mkdir()
        command = [*COMMAND, "--model", MODEL, "--store", f"sqlite:{tmp_path / 'swarm.db'}"]
        environment = environment_in(tmp_path / "home", server.environment())
        with open_terminal(
            [*command, "--dangerously-skip-permissions"], cwd=directory, environment=environment
        ) as terminal:
            terminal.wait_for(PROMPT_SIGN)
            terminal.enter("now sleep")
            terminal.wait_until(lambda: _sleeps(directory), "the shell to sleep")
            terminal.hang_up()
            terminal.wait_gone(lambda: not processes_below(directory), "everything to be gone", seconds=5)
