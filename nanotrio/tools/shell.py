"""The ``bash`` tool.

Theory of operation
-------------------
A command runs in a bash of its own, which leads a session: no terminal is in reach, and one signal to its group ends
all that stayed in it. Its input is at its end from the start. Output and errors go to one pipe, so they stay in
order, and the pipe is read into a ``Capture``, whose memory is bounded.

The call ends with the *shell*, not with the pipe: a process left in the background may hold the pipe for ever. What
is in it is read for ``_GRACE_SECONDS`` more; if somebody still holds it then, they are named, and the pipe is handed
to a ``cat`` that writes what they go on printing to a file. So they neither block on a full pipe nor die of a closed
one, and nothing here has to go on reading. They belong to the agent and end with its root.

The shell writes the directory it ends in to a second pipe from an EXIT trap. A command that replaces
the shell or the trap says nothing, and then the directory stays as it was.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import signal
from pathlib import Path

import msgspec
import trio

from ..errors import ToolError
from ..messages import clean_text
from .capture import Capture
from .child import Child, open_pipe, start_child
from .function import tool
from .output import head_of, open_output_file
from .processes import find_holders, join_marks
from .tool import ToolContext, ToolOutput

__all__ = ["MAX_TIMEOUT_MS", "bash"]

MAX_TIMEOUT_MS = 600_000

_GRACE_SECONDS = 0.25
"""How long the pipe is read on after the shell's end, for a process that is about to end as well."""
_TERM_SECONDS = 1.0
"""What a command that is out of time gets to put its things in order."""
_KILL_SECONDS = 2.0
"""How long a killed shell is waited for before it is left to the agent's end."""
_NOTE_BYTES = 1_000
"""Kept free in a result for what we say about the command, or half of a very small one."""
_MAX_NAMED = 8

_ENVIRONMENT = {
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "MANPAGER": "cat",
    "SYSTEMD_PAGER": "cat",
    "EDITOR": "true",
    "VISUAL": "true",
    "GIT_EDITOR": "true",
    "GIT_SEQUENCE_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "SSH_ASKPASS_REQUIRE": "never",
    "DEBIAN_FRONTEND": "noninteractive",
    "TERM": "dumb",
}
"""Keeps programs from waiting for a person: pagers pass everything through, editors change nothing."""
_LEFT_OUT = ("GIT_ASKPASS", "SSH_ASKPASS", "SUDO_ASKPASS", "PWD", "OLDPWD")


class _Memory(msgspec.Struct):
    """What an agent's shells pass on, in ``ToolContext.state``."""

    directory: str
    children: list[Child]
    """Started and not collected yet."""


@tool(
    effect=True,
    description="Run a command in bash and return what it prints, output and errors together. The directory carries "
    "over to the next call while it is within the working directory; variables do not. Input is empty and there is no "
    "terminal: give flags instead of answering questions. What should go on by itself needs run_in_background.",
)
async def bash(
    context: ToolContext,
    command: str,
    timeout: int = 120_000,
    description: str = "",  # noqa: ARG001 - for the person who reads along
    run_in_background: bool = False,
) -> ToolOutput:
    """Run a command in bash.

    Args:
        context: of the call.
        command: the command line or script.
        timeout: milliseconds after which it is ended, 600000 at most.
        description: five to ten words on what it does, for the person who reads along.
        run_in_background: return at once with the process id and the file its output goes to.
    """
    if "\0" in command:
        raise ToolError("the command holds a NUL character, which no command can; leave it out")
    memory = _memory_of(context)
    if run_in_background:
        return await _start_background(context, memory, command)
    most_seconds = context.limits.tool_seconds
    seconds = min(max(timeout, 1), MAX_TIMEOUT_MS) / 1_000
    seconds = min(seconds, max(most_seconds - 2 * _TERM_SECONDS, most_seconds / 2))  # so that we can still report
    return await _run(context, memory, command, seconds)


async def _run(context: ToolContext, memory: _Memory, command: str, seconds: float) -> ToolOutput:
    start, notes = _directory_of(context, memory)
    bound = context.limits.max_result_bytes
    with contextlib.ExitStack() as stack:
        reader, writer = _pipe(stack)
        place, place_writer = _pipe(stack)
        os.set_blocking(reader.fileno(), False)
        os.set_blocking(place.fileno(), False)
        capture = Capture(context, bound - _note_bytes(bound))
        stack.callback(capture.close)
        script = f"trap 'pwd -P 2>/dev/null >&{place_writer.fileno()}' EXIT; eval -- \"$1\""
        child = await _start_shell(context, [script, "bash", command], start, writer, place_writer)
        writer.close()
        place_writer.close()
        in_time, at_end = await _watch(context, child, reader.fileno(), capture, seconds)
        if not in_time:
            notes.append(
                f"ended after {seconds:g} s, its timeout; a longer one, or run_in_background, would let it go on"
            )
        elif not at_end:
            notes.append(await _leave_pipe(context, memory, reader, capture))
        if not child.has_group():
            context.processes.forget(child.pid)
        notes += _move(context, memory, _read_place(place))
        if in_time and child.returncode:
            notes.insert(0, _exit_text(child.returncode))
        text = _with_notes(await capture.finish(), notes, _note_bytes(bound))
        return ToolOutput(text, is_error=not in_time or child.returncode != 0)


async def _watch(
    context: ToolContext, child: Child, reader: int, capture: Capture, seconds: float
) -> tuple[bool, bool]:
    """Read until the shell's end, or end it; return whether it ended in time, and whether the pipe did."""
    try:
        at_end = await _read_until_end(child, reader, capture, seconds)
        in_time = child.returncode is not None
        if not in_time:
            _note_sessions(context, child)
            child.signal_group(signal.SIGTERM)
            await _read_until_end(child, reader, capture, _TERM_SECONDS)
            child.signal_group(signal.SIGKILL)
    finally:
        if child.returncode is None:
            _note_sessions(context, child)
            child.signal_group(signal.SIGKILL)
            with trio.CancelScope(shield=True, deadline=trio.current_time() + _KILL_SECONDS):
                await child.wait()
    capture.read_ready(reader)
    return in_time, at_end


def _note_sessions(context: ToolContext, child: Child) -> None:
    """Have what left the shell's session known by its own, before the shell that it descends from is gone."""
    for session in child.sessions_below():
        context.processes.note(session)


async def _read_until_end(child: Child, reader: int, capture: Capture, seconds: float) -> bool:
    """Read until the shell has ended, at most ``seconds``; return whether the pipe is at its end too."""
    at_end = trio.Event()

    async def read() -> None:
        await capture.read_from(reader)
        at_end.set()

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await child.wait()
            with trio.move_on_after(_GRACE_SECONDS):
                await at_end.wait()
            nursery.cancel_scope.cancel()
    return at_end.is_set()


async def _leave_pipe(context: ToolContext, memory: _Memory, reader: io.FileIO, capture: Capture) -> str:
    """Let those who hold the pipe go on without us, and say who they are."""
    holders = await find_holders(reader.fileno())
    capture.read_ready(reader.fileno())
    os.set_blocking(reader.fileno(), True)
    try:
        rest = f"what follows goes to {await _drain_into_file(context, memory, reader)}"
    except ToolError as error:
        rest = f"what follows is lost: {error}"
    names = ", ".join(f"{pid} ({command})" for pid, command in holders[:_MAX_NAMED]) or "a process"
    if len(holders) > _MAX_NAMED:
        names += f" and {len(holders) - _MAX_NAMED} more"
    return f"still running, with this output open: {names}; {rest}"


async def _start_background(context: ToolContext, memory: _Memory, command: str) -> ToolOutput:
    start, notes = _directory_of(context, memory)
    with contextlib.ExitStack() as stack:
        reader, writer = _pipe(stack)
        path = await _drain_into_file(context, memory, reader)
        child = await _start_shell(context, [command], start, writer)
        memory.children.append(child)
    notes.append(f"runs in the background as process {child.pid}; it prints to {path}")
    return ToolOutput(_with_notes("", notes, _NOTE_BYTES))


async def _start_shell(
    context: ToolContext, script: list[str], start: str, output: io.FileIO, *kept: io.FileIO
) -> Child:
    path = _find_bash(context.environment.get("PATH", os.defpath))
    inherited = {name: value for name, value in context.environment.items() if name not in _LEFT_OUT}
    environment = join_marks(inherited | _ENVIRONMENT, context.processes.marks())
    arguments = ["bash", "--norc", "--noprofile", "-c", *script]
    numbers = tuple(file.fileno() for file in kept)
    try:
        child = await start_child(path, arguments, environment, output=output.fileno(), directory=start, kept=numbers)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ToolError(f"bash could not be started: {why}; a very long command belongs in a file") from error
    context.processes.note(child.pid)
    return child


async def _drain_into_file(context: ToolContext, memory: _Memory, reader: io.FileIO) -> Path:
    """Start a ``cat`` from the pipe to a new file of bounded size; it ends with the last writer."""
    output, path = open_output_file(context, ".log")
    try:
        outer = {name: value for name, value in context.environment.items() if name in context.processes.marks()}
        environment = join_marks(outer | {"PATH": "/usr/bin:/bin"}, context.processes.marks())
        blocks = context.limits.max_output_file_bytes // 512  # POSIX counts in these
        arguments = ["sh", "-c", f"ulimit -f {blocks}; exec cat"]
        child = await start_child("/bin/sh", arguments, environment, output=output, source=reader.fileno())
    except OSError as error:
        raise ToolError(f"nothing could be started to read what the command prints: {error.strerror}") from error
    finally:
        os.close(output)
    context.processes.note(child.pid)
    memory.children.append(child)
    return path


def _pipe(stack: contextlib.ExitStack) -> tuple[io.FileIO, io.FileIO]:
    try:
        return open_pipe(stack)
    except OSError as error:
        raise ToolError(
            f"the command was not run: {error.strerror}; run fewer commands at once, or raise the limit (ulimit -n)"
        ) from error


def _memory_of(context: ToolContext) -> _Memory:
    memory = context.state.get("bash")
    if not isinstance(memory, _Memory):
        memory = context.state["bash"] = _Memory(str(context.directory), [])
    running = [child for child in memory.children if child.poll() is None]
    for child in memory.children:
        if child.returncode is not None and not child.has_group():
            context.processes.forget(child.pid)
    memory.children = running
    return memory


def _directory_of(context: ToolContext, memory: _Memory) -> tuple[str, list[str]]:
    """Return where the next command starts, and what is to be said about it."""
    if Path(memory.directory).is_dir():
        return memory.directory, []
    gone, memory.directory = memory.directory, str(context.directory)
    if Path(memory.directory).is_dir():
        return memory.directory, [f"{gone} is gone; this ran in {memory.directory}"]
    raise ToolError(f"the working directory {memory.directory} does not exist; make it again or ask for another")


def _move(context: ToolContext, memory: _Memory, place: str) -> list[str]:
    """Carry the directory over, if it is within the agent's."""
    root = os.path.realpath(context.directory)
    if not place or place == memory.directory:
        return []
    if place == root or place.startswith(root.rstrip("/") + "/"):
        memory.directory = place
        return []
    memory.directory = str(context.directory)
    return [f"{place} is outside the working directory; the next command starts in {memory.directory}"]


def _read_place(place: io.FileIO) -> str:
    with contextlib.suppress(OSError):
        return os.fsdecode(place.read(2**14) or b"").removesuffix("\n")
    return ""


def _exit_text(code: int) -> str:
    if code == Child.UNKNOWN:
        return "its exit code is unknown, another part of the program collected it"
    if code < 0:
        return f"killed by {_signal_name(-code) or f'signal {-code}'}"
    if code > 128 and (name := _signal_name(code - 128)):
        return f"exit code {code} ({name})"
    return f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _note_bytes(max_bytes: int) -> int:
    """Return what of a result is kept free for notes."""
    return min(_NOTE_BYTES, max_bytes // 2)


def _with_notes(text: str, notes: list[str], max_bytes: int) -> str:
    if not text and not notes:
        return "(no output)"
    said = head_of("\n".join(f"[{clean_text(note)}]" for note in notes), max_bytes - 1)
    if not text or not said:
        return text or said
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}{said}"


@functools.lru_cache(maxsize=64)
def _find_bash(path: str) -> str:
    found = shutil.which("bash", path=path) or shutil.which("bash", path="/usr/local/bin:/usr/bin:/bin")
    if found is None:
        raise ToolError("there is no bash on this machine's PATH; install it, or use the other tools")
    return found
