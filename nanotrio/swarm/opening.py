"""Opening a swarm, and closing it in every way a block can be left.

Theory of operation
-------------------
The agents and the services they stand on live in a task of their own, shielded from the user's cancellation::

    open_swarm's nursery
    ├── the user's block
    └── _run, shielded
        └── services: journal writer, pump, deadlines, transcripts    ended last
            └── roots: every agent of the swarm              ended before

So a cancel that comes from outside hits the user's block alone. The block's end, however it comes, then decides: a
normal end waits until every root is idle; an exception or a cancel interrupts the agents, which writes nothing final,
and flushes in a shield with a deadline. Agents always end before the journal they write to.

All of that is done by ``_run``, whom the block's end is told through ``_End``. Ctrl-C is raised in the main task, which
most often is the user's, at any await, shielded or not: a second one would leave the agents with nobody to end them.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast, get_args

import msgspec
import trio

from .. import crash
from ..errors import NanotrioError, UsageError
from ..given import a_text, choice, whole
from ..journal import Journal
from ..limits import Limits, check_limits
from ..models import Model
from ..stores import MemoryStore, Store, open_store, parse_url, this_process
from ..tools import TREE_TOOLS, Tool, reap_all, rule_names
from ..tools import permission_mode as check_mode
from .burst import Burst
from .ceiling import Ceiling
from .deadlines import Deadlines
from .ending import end_trees
from .events import StoreTroubled
from .interpreter import tuned_interpreter
from .life import run_agent
from .mailroom import Waiter
from .node import Node
from .recovery import read_unfinished, tail_heads
from .residence import Residence
from .runtime import Approver, Durability, Permissions, Runtime, Settings
from .spawning import check_tools, directory_of, register_tool
from .swarm import Swarm
from .transcripts import Transcripts
from .tree import SwarmTree

__all__ = ["open_swarm"]

FLUSH_SECONDS = 10.0
"""How long leaving the block may take to write what is queued."""
_TELL_SECONDS = 30.0
"""How often a person is told what keeps the block from being left."""
_MAX_NAMES = 20

_log = logging.getLogger("nanotrio")


@asynccontextmanager
async def open_swarm(
    *,
    store: str | Store | None = None,
    model: str | Model | None = None,
    tools: Sequence[Tool | Callable[..., Any]] = (),
    system: str = "",
    limits: Limits | None = None,
    max_active: int = 5_000,
    max_memory_bytes: int | None = None,
    takeover: bool = False,
    durability: Durability = "effects",
    fsync: bool = False,
    environment: Mapping[str, str] | None = None,
    directory: Path | str | None = None,
    permission_mode: str = "bypassPermissions",
    allowed_tools: Sequence[str] = (),
    denied_tools: Sequence[str] = (),
    approve: Approver | None = None,
) -> AsyncIterator[Swarm]:
    """Open a swarm on a store; resume nothing by itself.

    Args:
        store: ``sqlite:PATH`` or ``postgres://...?swarm=NAME``; None keeps everything in memory.
        model: full name of the model that agents use unless told otherwise, or your own.
        tools: registered by name; agents have all of them unless told otherwise.
        system: the system prompt of roots that are given none.
        limits: of roots; a child's are the least of its own and its parent's.
        max_active: agents that may work at once; those that wait for a child, mail or money do not count.
        max_memory_bytes: above it new agents wait; None for 80 % of the machine's, or the control group's, memory.
        takeover: take the store over from a live owner, which then can write nothing more.
        durability: what is durable first: ``"effects"`` outside effects' intents, ``"async"`` none, ``"sync"`` all.
        fsync: survive a loss of power too, not only of the process.
        environment: what models and tools see in place of ``os.environ``. Provider keys are not handed to processes.
        directory: where agents work; the current directory by default.
        permission_mode: ``manual``, ``acceptEdits``, ``plan`` or ``bypassPermissions``.
        allowed_tools: names of tools that need not be asked for in ``manual`` mode.
        denied_tools: names of tools that no agent may use.
        approve: asked in ``manual`` mode before a tool with an effect runs; without it such calls are denied.

    Leaving the block normally waits until every root is idle, then flushes and closes. Leaving it by an exception or
    a cancel interrupts the agents: nothing final is written, and ``resume`` goes on from there.

    Raises:
        UsageError: a value that cannot be used; nothing was written.
        StoreError: the store cannot be used, has a live owner (``StoreOwnedError``), or was lost meanwhile.
    """
    async with _opened(store, fsync=fsync) as opened:
        settings = Settings(
            system=a_text(system, "system"),
            limits=check_limits(Limits() if limits is None else limits),
            environment=_environment(os.environ if environment is None else environment),
            directory=Path(directory_of(directory or Path.cwd())),
            permissions=_permissions(permission_mode, allowed_tools, denied_tools),
            durability=cast("Durability", choice(durability, "durability", get_args(Durability))),
            approve=_asked(approve),
        )
        runtime = _prepare(opened, settings, model, tools, max_active, max_memory_bytes)
        await _become_owner(runtime, takeover=takeover)
        async with _running(runtime) as swarm:
            yield swarm


class _End:
    """How the block was left, once it was."""

    __slots__ = ("is_interruption", "was_left")

    def __init__(self) -> None:
        self.was_left = trio.Event()
        self.is_interruption = False


@asynccontextmanager
@trio.lowlevel.enable_ki_protection
async def _running(runtime: Runtime) -> AsyncIterator[Swarm]:
    """Run the agents while the block is, and end them as it ends."""
    error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            end = _End()
            await nursery.start(_run, runtime, end, nursery.cancel_scope)
            try:
                yield Swarm(runtime)
                await _idle(runtime)
            except BaseException as raised:  # noqa: BLE001, ASYNC103 - raised again once the agents are gone
                error = raised
            end.is_interruption = error is not None
            end.was_left.set()
    except BaseExceptionGroup as crash:
        if crash.split(KeyboardInterrupt)[1] is None:  # Ctrl-C while all of it ended
            error = error if isinstance(error, KeyboardInterrupt) else KeyboardInterrupt()
        else:  # nanotrio's own fault
            error = crash
    _raise(runtime, error)


def _permissions(mode: str, allowed: Sequence[str], denied: Sequence[str]) -> Permissions:
    return Permissions(check_mode(mode), rule_names(allowed, "allowed_tools"), rule_names(denied, "denied_tools"))


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(environment, Mapping):
        raise UsageError(f"environment is of the type {type(environment).__name__}; give a dict of texts")
    return {
        a_text(name, "a name in environment"): a_text(environment[name], f"environment[{name!r}]")
        for name in environment
    }


def _asked(approve: Approver | None) -> Approver | None:
    if approve is not None and not callable(approve):
        raise UsageError(f"approve is of the type {type(approve).__name__}; give an async function")
    return approve


class _Opened(msgspec.Struct, frozen=True):
    """A store that was opened, and what goes by its place."""

    store: Store
    output_directory: Path
    token: str


@asynccontextmanager
async def _opened(store: str | Store | None, *, fsync: bool) -> AsyncIterator[_Opened]:
    """Open the store, and give it back however the block ends."""
    if not isinstance(store, str | None) and not hasattr(store, "commit"):
        raise UsageError(f"store is of the type {type(store).__name__}; give an address, as in 'sqlite:swarm.db'")
    if isinstance(store, str):
        address = parse_url(store)
        token = blake2b(address.token_text.encode(errors="surrogateescape"), digest_size=8).hexdigest()
        output_directory = address.output_directory
        opened = await open_store(store, fsync=fsync)
    else:
        token = os.urandom(8).hex()
        output_directory = Path(tempfile.gettempdir()) / f"nanotrio-{os.getuid()}" / token
        opened = MemoryStore() if store is None else store
    try:
        yield _Opened(opened, output_directory, token)
    finally:
        with trio.CancelScope(shield=True):
            await opened.aclose()


def _prepare(
    opened: _Opened,
    settings: Settings,
    model: str | Model | None,
    tools: Sequence[Tool | Callable[..., Any]],
    max_active: int,
    max_memory_bytes: int | None,
) -> Runtime:
    """Check all that was given, before anything is written."""
    max_active = whole(max_active, "max_active", 1)
    if max_memory_bytes is not None:
        max_memory_bytes = whole(max_memory_bytes, "max_memory_bytes", 1)
    ceiling = Ceiling(max_memory_bytes)
    runtime = Runtime(settings, opened.store, max_active, opened.token, opened.output_directory, ceiling)
    given: list[Tool | Callable[..., Any]] = [*check_tools(tools), *TREE_TOOLS]
    names = tuple(dict.fromkeys([register_tool(runtime, each) for each in given]))
    if unknown := [name for name in settings.permissions.denied_tools if name not in names]:
        _log.warning("denied_tools has %s, and no tool of the swarm is called so yet", ", ".join(map(repr, unknown)))
    if model is not None and not isinstance(model, str):
        if not hasattr(model, "attempt"):
            raise UsageError(f"model is of the type {type(model).__name__}; give a name, or a Model of your own")
        runtime.models[model.name] = model
    default = runtime.model(model) if isinstance(model, str) else model
    runtime.settings = msgspec.structs.replace(settings, tools=names, model=default)
    return runtime


async def _become_owner(runtime: Runtime, *, takeover: bool) -> None:
    """Become the store's writer and read what is unfinished in it."""
    store = runtime.store
    if crash.here is not None:
        crash.here("before-takeover", 0)
    tenure = await store.acquire(this_process(), takeover=takeover)
    if crash.here is not None:
        crash.here("after-takeover", tenure.last_seq)
    tail, heads = await tail_heads(store, tenure.heads_seq)
    runtime.owner_token = f"{runtime.token}-{tenure.epoch}"
    runtime.taken_from = tenure.former if tenure.former_lives else None
    runtime.residence = Residence(runtime)
    behind = msgspec.structs.replace(tail, last_seq={agent: head.last_seq for agent, head in heads.items()})
    runtime.journal = Journal(
        *(store, tenure, runtime.dirty_heads),
        elsewhere=runtime.residence.row_mail.heads,
        tail=behind,
        committed=runtime.residence.committed,
    )
    runtime.burst = Burst(runtime.journal)
    runtime.next_agent = max(tenure.last_agent, tail.last_agent) + 1
    runtime.cold = heads
    await read_unfinished(store, heads, runtime.unresumed.add)
    runtime.deadlines = Deadlines(runtime)
    runtime.transcripts = Transcripts(runtime, runtime.ceiling)
    runtime.tree = SwarmTree(runtime)
    runtime.run_agent = partial(run_agent, runtime)


@trio.lowlevel.enable_ki_protection
async def _run(runtime: Runtime, end: _End, block: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
    """Hold the agents and what they stand on, until the block is left, every agent is gone and all is written."""
    with tuned_interpreter(), trio.CancelScope(shield=True):
        try:
            async with trio.open_nursery() as services:
                await services.start(runtime.journal.run)
                services.start_soon(runtime.pump.run)
                services.start_soon(runtime.deadlines.run)
                services.start_soon(runtime.transcripts.run)
                services.start_soon(runtime.transcripts.load)
                services.start_soon(runtime.residence.run)
                services.start_soon(_watch_store, runtime)
                services.start_soon(_watch_failure, runtime, block)
                async with trio.open_nursery() as roots:
                    runtime.roots = roots
                    task_status.started()
                    await end.was_left.wait()
                    await _wind_down(runtime, is_interruption=end.is_interruption)
                    services.start_soon(_tell_holders, runtime)
                services.cancel_scope.cancel()
        finally:
            runtime.close_client()
            await _flush(runtime)  # noqa: ASYNC102 - all of this is shielded


async def _tell_holders(runtime: Runtime) -> None:
    """Tell which agents have a task that does not end though it was cancelled: nobody can end it for them."""
    await trio.sleep_until(runtime.holders_due)
    while True:
        holders = [_running_calls(node) for node in runtime.nodes.values() if node.has_task]
        if holders:
            if len(holders) > _MAX_NAMES:
                holders[_MAX_NAMES:] = [f"and {len(holders) - _MAX_NAMES:,} more"]
            _log.warning("leaving waits for what does not end though cancelled: %s", ", ".join(holders))
        await trio.sleep(_TELL_SECONDS)


def _running_calls(node: Node) -> str:
    """Return an agent's name, and the tools whose calls have no result yet; none are known of a turn that was ended."""
    calls = node.session.turn.calls if node.session.turn else ()
    tools = dict.fromkeys([each.call.name for each in calls if each.result is None])
    return f"{node.name} ({', '.join(tools) or 'its task'})"


async def _watch_store(runtime: Runtime) -> None:
    """Show at once that the store takes no writes, and that it takes them again."""
    known = ""
    while True:
        known = await runtime.journal.wait_trouble_change(known)
        if known and runtime.journal.failed is None:  # a final failure is raised out of the block
            _log.warning("the store takes no writes: %s", known)
        runtime.emit(None, StoreTroubled(0, known))


async def _watch_failure(runtime: Runtime, block: trio.CancelScope) -> None:
    """A lost fence or a store beyond repair ends the block; nothing more is dispatched."""
    runtime.fatal = await runtime.journal.wait_failed()
    block.cancel()


async def _idle(runtime: Runtime) -> None:
    """Wait until no root is unfinished."""
    while runtime.unfinished_roots or runtime.residence.owes:
        waiter = Waiter(runtime.pump, 1)
        runtime.idle_waiters.append(waiter)
        try:
            await waiter.wait()
        finally:
            runtime.idle_waiters.remove(waiter)


async def _wind_down(runtime: Runtime, *, is_interruption: bool) -> None:
    """End the agents; the journal lives on until they are gone."""
    runtime.is_closing = True
    runtime.holders_due = trio.current_time() + runtime.settings.limits.max_reap_seconds
    if is_interruption:
        tops = [node for node in runtime.nodes.values() if node.parent is None]
        runtime.residence.drop_rows()
        await end_trees(runtime, tops, "interrupted", "the swarm was left")
    else:
        processes = [each for node in runtime.nodes.values() for each in node.all_processes()]
        await reap_all(processes, runtime.settings.limits.max_reap_seconds)


async def _flush(runtime: Runtime) -> None:
    """Write what is queued, also after a fault of nanotrio's own; that it cannot be is told later."""
    if crash.here is not None:
        crash.here("before-close", runtime.journal.durable_seq)
    try:
        await runtime.journal.aclose(trio.current_time() + FLUSH_SECONDS)
        if crash.here is not None:
            crash.here("after-close", runtime.journal.durable_seq)
    except NanotrioError as lost:
        runtime.lost = lost


def _raise(runtime: Runtime, error: BaseException | None) -> None:
    """Let the block's own error, or the store's, out."""
    if runtime.lost is not None:
        if runtime.fatal is None and error is None:
            raise runtime.lost
        if error is not None:
            error.add_note(str(runtime.lost))
    if runtime.fatal is not None:
        raise runtime.fatal
    if error is not None:
        raise error
