"""The processes and threads of agents: knowing them, ending them, and finding what a dead swarm left.

Theory of operation
-------------------
A process belongs to an agent in one of three ways. It is in the group or session that a tool started for the agent; or
its environment carries the agent's mark, ``NANOTRIO_AGENT=TOKEN:AGENT``, which every process inherits from the one
that started it and which survives ``setsid`` and the death of the parent; or it descends from such a process. Marks are
read from ``/proc/PID/environ``, so a process that cleared its environment *and* left its session *and* whose parents
are gone is not found, and outside Linux groups are all there is. A swarm that runs inside another's ``bash`` adds its
mark to the one it inherited (parted by ``;``), so the outer agent's end finds the inner one's processes too.

Ending agents is one loop for all that end together: look at the process table once, kill what belongs to any of them,
and look again until nothing is left or the time is up; a process forked during a look is found by the next. A zombie
counts as gone. One that is our own child is collected by its number; nobody else's child is, so exit codes that other
code waits for are never taken. That is also why nanotrio is no subreaper: orphans handed to it would look like
children that the user's own code started, and could not be collected without taking those as well. A thread cannot be
ended; it is waited for, and then named.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
import trio

from .threads import thread_limiter

__all__ = [
    "MARK",
    "AgentProcesses",
    "Leftover",
    "end_leftovers",
    "find_holders",
    "find_leftovers",
    "join_marks",
    "reap_all",
]

MARK = "NANOTRIO_AGENT"
_LOOK_AGAIN_SECONDS = 0.01
_MANY = 32
"""Groups above which a new one makes us drop those that have ended."""


class Leftover(msgspec.Struct, frozen=True, gc=False):
    """A process that a swarm left behind."""

    pid: int
    command: str
    agent: int


class AgentProcesses:
    """The processes and threads of one agent; implements ``Processes``.

    Args:
        token: names the swarm among all on this machine; no ``:`` or ``;`` in it.
        agent: the agent's number in it.
    """

    __slots__ = ("_agent", "_groups", "_marks", "_started", "_threads", "_token")

    def __init__(self, token: str, agent: int) -> None:
        self._token = token
        self._agent = agent
        self._groups: set[int] | None = None
        self._marks: dict[str, str] | None = None
        self._started = False
        self._threads: dict[object, str] | None = None

    def note(self, pid: int) -> None:
        """A process group or session led by ``pid`` was started for the agent."""
        self._started = True
        if self._groups is None:
            self._groups = set()
        if len(self._groups) >= _MANY:
            self._groups = {group for group in self._groups if _is_alive(group)}
        self._groups.add(pid)

    def forget(self, pid: int) -> None:
        """The group led by ``pid`` has no member left."""
        if self._groups is not None:
            self._groups.discard(pid)

    def marks(self) -> Mapping[str, str]:
        """The environment variable that descendants are known by."""
        if self._marks is None:
            self._marks = {MARK: self.mark}
        self._started = True
        return self._marks

    def thread_began(self, tool: str) -> object:
        """A thread runs ``tool`` for the agent; said in that thread."""
        thread = object()
        if self._threads is None:
            self._threads = {}
        self._threads[thread] = tool
        return thread

    def thread_ended(self, thread: object) -> None:
        """That thread is done; said in it."""
        if self._threads is not None:
            self._threads.pop(thread, None)

    @property
    def is_unused(self) -> bool:
        """Whether nothing was started for the agent so far, so that it may as well get another of these."""
        return not self._started and self._marks is None and not self._threads

    @property
    def threads(self) -> tuple[str, ...]:
        """The tools that a thread still runs."""
        return tuple((self._threads or {}).values())

    @property
    def mark(self) -> str:
        """The value that marks the agent's processes."""
        return f"{self._token}:{self._agent}"

    @property
    def groups(self) -> frozenset[int]:
        """Groups that may have members."""
        return frozenset(self._groups or ())

    @property
    def has_started(self) -> bool:
        """Whether any process was ever started for the agent; where not, reaping is free."""
        return self._started

    async def reap(self, max_seconds: float) -> tuple[str, ...]:
        """End them all; see ``reap_all``."""
        return (await reap_all((self,), max_seconds))[0]


def join_marks(environment: Mapping[str, str], marks: Mapping[str, str]) -> dict[str, str]:
    """Return ``environment`` with ``marks``, keeping the mark of an outer swarm."""
    outer = environment.get(MARK)
    joined = {**environment, **marks}
    if outer and MARK in marks:
        joined[MARK] = f"{outer};{marks[MARK]}"
    return joined


async def reap_all(agents: Iterable[AgentProcesses], max_seconds: float) -> list[tuple[str, ...]]:
    """Kill every process of ``agents`` and wait until they and its threads are gone, at most ``max_seconds``.

    Returns for each agent, in order, a line for each process or thread that remains and why. No tool of these agents
    may be running any more. Each call looks at the whole process table, so end many agents by one call. Checkpoints,
    unless they started nothing; cancelled, it has killed what it found so far. Shield it where it must finish.
    """
    listed = list(agents)
    pending = [index for index, agent in enumerate(listed) if agent.has_started]
    threaded = [agent for agent in listed if agent.threads]
    if not pending and not threaded:
        return [()] * len(listed)
    deadline = trio.current_time() + max_seconds
    marks = {listed[index].mark.encode(): index for index in pending}
    groups = {group: index for index in pending for group in listed[index].groups}
    delay_seconds = 0.005
    while True:
        remaining = []
        if pending:
            remaining = await trio.to_thread.run_sync(_kill_once, marks, groups, limiter=thread_limiter("scan"))
        is_done = not remaining and not any(agent.threads for agent in threaded)
        if is_done or trio.current_time() >= deadline:
            break
        await trio.sleep(min(delay_seconds, max(deadline - trio.current_time(), 0)))
        delay_seconds = min(delay_seconds * 2, 0.1)
    lines: list[list[str]] = [_thread_lines(agent) for agent in listed]
    for owner, text in remaining:
        lines[owner].append(text)
    for index in pending:
        for group in listed[index].groups:
            if not _is_alive(group):
                listed[index].forget(group)
    return [tuple(own) for own in lines]


def _thread_lines(agent: AgentProcesses) -> list[str]:
    return [f"a thread of the tool {tool} has not returned, and no thread can be ended" for tool in agent.threads]


async def find_leftovers(token: str, *, but: str = "") -> list[Leftover]:
    """Return the running processes of this user that carry the mark of the swarm ``token``, or of an owner of it.

    An owner's token is the swarm's with ``-EPOCH`` behind it; the processes of the owner ``but`` are left out.
    """
    return await trio.to_thread.run_sync(_find_marked, token, but, limiter=thread_limiter("scan"))


async def end_leftovers(token: str, max_seconds: float, *, but: str = "") -> list[Leftover]:
    """Kill what ``find_leftovers`` finds until it finds nothing, at most ``max_seconds``; return what it found."""
    ended: dict[int, Leftover] = {}
    with trio.move_on_after(max_seconds):
        while found := await find_leftovers(token, but=but):
            for leftover in found:
                ended[leftover.pid] = leftover
                with contextlib.suppress(OSError):
                    os.kill(leftover.pid, signal.SIGKILL)
            await trio.sleep(_LOOK_AGAIN_SECONDS)
    return list(ended.values())


async def find_holders(descriptor: int) -> list[tuple[int, str]]:
    """Return (pid, command) of every other process that has the pipe behind ``descriptor`` open.

    Processes of other users are not seen, and none outside Linux. Checkpoints; may be cancelled at any time.
    """
    link = f"pipe:[{os.fstat(descriptor).st_ino}]"
    limiter = thread_limiter("scan")
    return await trio.to_thread.run_sync(_find_open, link, abandon_on_cancel=True, limiter=limiter)


class _Seen(msgspec.Struct, gc=False):
    """A line of the process table."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    command: str


def _kill_once(marks: Mapping[bytes, int], groups: Mapping[int, int]) -> list[tuple[int, str]]:
    """Kill all that belongs to the marks and groups, and say what still lives, with its owner."""
    remaining: list[tuple[int, str]] = []
    if not Path("/proc/self").exists():
        return _kill_groups(groups)
    for seen, owner in _owned(marks, groups):
        if seen.state in "ZX":
            if seen.parent == os.getpid():
                _collect(seen.pid)
            continue
        try:
            os.kill(seen.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
        except PermissionError:
            remaining.append((owner, f"process {seen.pid} ({seen.command}) runs as another user"))
            continue
        why = "is uninterruptible, in a system call" if seen.state == "D" else "was killed and has not gone yet"
        remaining.append((owner, f"process {seen.pid} ({seen.command}) {why}"))
    return remaining


def _owned(marks: Mapping[bytes, int], groups: Mapping[int, int]) -> list[tuple[_Seen, int]]:
    """Return the processes that belong to the marks and groups, or descend from one that does, each with its owner."""
    table = {seen.pid: seen for seen in _processes()}
    table.pop(os.getpid(), None)
    owners: dict[int, int] = {}
    for seen in table.values():
        owner = groups.get(seen.group, groups.get(seen.session))
        if owner is None and seen.state not in "ZX":
            owner = next((marks[mark] for mark in _marks_of(seen.pid) if mark in marks), None)
        if owner is not None:
            owners[seen.pid] = owner
    for seen in table.values():
        above = seen
        while above.pid not in owners and above.parent in table:
            above = table[above.parent]
        if above.pid in owners:
            owners[seen.pid] = owners[above.pid]
    return [(table[pid], owner) for pid, owner in owners.items()]


def _kill_groups(groups: Mapping[int, int]) -> list[tuple[int, str]]:
    """Do what can be done without ``/proc``."""
    remaining = []
    for group, owner in groups.items():
        _collect(group)
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            continue
        except PermissionError:
            remaining.append((owner, f"process group {group} has members of another user, or zombies"))
            continue
        remaining.append((owner, f"process group {group} was killed and has not gone yet"))
    return remaining


def _find_marked(token: str, but: str) -> list[Leftover]:
    found = []
    for seen in _processes():
        for mark in _marks_of(seen.pid):
            owner, _, agent = mark.decode(errors="replace").rpartition(":")
            is_ours = owner == token or (owner.rpartition("-")[0] == token and owner != but)
            if is_ours and seen.state not in "ZX":
                found.append(Leftover(seen.pid, seen.command, int(agent) if agent.isdigit() else 0))
                break
    return found


def _find_open(link: str) -> list[tuple[int, str]]:
    found = []
    own = os.getpid()
    for seen in _processes():
        if seen.pid == own or seen.state in "ZX":
            continue
        try:
            with os.scandir(f"/proc/{seen.pid}/fd") as entries:
                is_open = any(os.readlink(entry.path) == link for entry in entries)  # noqa: PTH115 - many, and a Path each costs more
        except OSError:
            continue
        if is_open:
            found.append((seen.pid, seen.command))
    return found


def _processes() -> Iterable[_Seen]:
    """Read the process table (proc(5)); processes that end meanwhile are passed over."""
    try:
        names = os.listdir("/proc")  # noqa: PTH208 - names are all we need
    except OSError:
        return
    for name in names:
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - thousands, in one look
                stat = file.read(1024)
        except OSError:
            continue
        head, _, rest = stat.rpartition(b") ")
        fields = rest.split()
        if len(fields) < 4:
            continue
        command = head.partition(b" (")[2].decode(errors="replace")
        yield _Seen(int(name), fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), command)


def _marks_of(pid: int) -> tuple[bytes, ...]:
    """Return the marks in a process's environment, outermost first."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone, or another user's
        return ()
    key = MARK.encode() + b"="
    start = 0 if environment.startswith(key) else environment.find(b"\0" + key) + 1
    if start == 0 and not environment.startswith(key):
        return ()
    value = environment[start + len(key) :].partition(b"\0")[0]
    return tuple(value.split(b";"))


def _collect(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
