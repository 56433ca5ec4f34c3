"""Which agents are in memory: the one way out, and the one way back in.

Theory of operation
-------------------
An agent is in one of three places:

- in ``runtime.nodes``, the registry. Only there it runs, gets mail, or changes at all. Its ancestors are there too.
- in ``runtime.departed``: it left the registry, and a handle still refers to its node. It does not change there, so it
  can be looked at; ``here`` puts it back without I/O. So there is never a second node of one agent.
- in the store alone. ``bring_in`` makes a node of it, and of its ancestors that are not in memory.

An agent leaves once more than ``max_idle`` have nothing to do, oldest first and roots last: it is finished, nobody
waits for it, no descendant is in memory, and its last record is durable. Its head stays in ``runtime.cold`` until the
journal has written it. What it spent is in its ancestors' ledgers already.

Pending agents beyond some hundreds never were in memory: they are ``rows`` of the slots, unfinished children of a node
that counts them. The next few hundred are brought in before their turn; one that is addressed is brought in by itself
and keeps its place, but for mail, which needs no node (``row_mail``). Their parents are unfinished, so they are in
memory always.

A subtree that is cancelled may have many thousand rows. ``end_rows`` says that all rows below a parent are to be ended;
they are set aside and then brought in and closed a slice at a time, with the same records as any other agent. An
interrupted swarm drops its rows: the store has them.

All of this is done by one task, ``Residence.run``, and nothing else lets an agent leave: what a task holds without an
await stays, and so does what ``bring_in`` returned with until the next await.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol
from weakref import WeakValueDictionary

import trio

from ..errors import ClosedError, StoreError
from ..records import Closed, Head
from .entering import Entry, enter, read_entries
from .mailroom import Waiter
from .node import Node
from .pump import Parked
from .returns import Returns
from .row_endings import RowEndings
from .row_mail import RowMail
from .settling import end_sealed

if TYPE_CHECKING:
    from .runtime import Runtime

__all__ = ["Residence"]

_SLICE = 256
_LEFT = 128
"""Agents that leave in one pass."""
_ENDED = 128
"""Rows that are ended in one pass."""
_MAX_SURPLUS = 4_096
"""Ended rows in memory that are waited for."""
_RETRY_SECONDS = 0.05

_log = logging.getLogger("nanotrio")


class Handle(Protocol):
    """Somebody's handle of a row; it is told of the node once there is one."""

    def bind(self, node: Node) -> None:
        """The agent is in memory now."""
        ...


class _Request:
    """Agents that somebody waits for."""

    __slots__ = ("error", "left", "nodes", "parked")

    def __init__(self, left: int) -> None:
        self.left = left
        self.nodes: list[Node] = []
        self.error: Exception | None = None
        self.parked = Parked()


class Residence:
    """Lets agents of one swarm leave memory and come back."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.taken_up: set[int] = set()
        """Roots that were spawned or resumed here: only of these trees are agents brought in."""
        self.handles: WeakValueDictionary[int, Handle] = WeakValueDictionary()
        """Of rows."""
        self.waiters: dict[int, list[Waiter]] = {}
        """Those who wait for rows to end."""
        self._idle: OrderedDict[int, Node] = OrderedDict()
        self._idle_roots: OrderedDict[int, Node] = OrderedDict()
        self._wanted: dict[int, list[_Request]] = {}
        self._returns = Returns(runtime)
        self._endings = RowEndings()
        self.row_mail = RowMail(runtime, self._endings)
        self._parked: Parked | None = None

    # Leaving.

    def rest(self, node: Node) -> None:
        """The agent has nothing to do: it may leave."""
        if node.is_counted or self._runtime.nodes.get(node.id) is not node:
            return
        idle = self._idle if node.parent is not None else self._idle_roots
        idle[node.id] = node
        if self.surplus > 0:
            self.stir()

    def has_work(self, node: Node) -> None:
        """The agent has something to do: it stays."""
        (self._idle if node.parent is not None else self._idle_roots).pop(node.id, None)

    @property
    def surplus(self) -> int:
        """How many agents are to leave."""
        return len(self._idle) + len(self._idle_roots) - self._runtime.settings.limits.max_idle

    @property
    def owes(self) -> bool:
        """Whether something is on its way that nobody waits for: mail that goes back, rows that are ended."""
        return bool(self._returns or self._endings)

    def committed(self, heads: Sequence[Head]) -> None:
        """The journal has written these heads."""
        self.row_mail.committed(heads)
        cold, due = self._runtime.cold, self._runtime.journal.due
        if cold:
            for head in heads:
                known = cold.get(head.agent)
                if known is not None and _state_of(known) == _state_of(head) and head.agent not in due:
                    del cold[head.agent]
        if self.surplus > 0:
            self.stir()

    def _let_leave(self) -> bool:
        """Let the oldest go, a slice of them; return whether any did."""
        durable_seq = self._runtime.journal.durable_seq
        surplus, left = self.surplus, 0
        for idle in (self._idle, self._idle_roots):
            for _ in range(min(len(idle), _LEFT)):
                if left >= surplus:
                    return left > 0
                agent, node = idle.popitem(last=False)
                if node.session.last_seq > durable_seq:
                    idle[agent] = node
                    idle.move_to_end(agent, last=False)
                    break
                if node.may_leave():
                    self._leave(node)
                    left += 1
                else:
                    idle[agent] = node
        return left > 0

    def _leave(self, node: Node) -> None:
        runtime = self._runtime
        agent = node.id
        if agent in runtime.journal.due:
            runtime.cold[agent] = runtime.head_of(node)
        del runtime.nodes[agent]
        parent = node.parent
        if parent is not None:
            if parent.children:
                parent.children.pop(agent, None)
            if kept := node.all_processes():
                parent.left_processes = [*(parent.left_processes or ()), *kept]
        node.processes = node.left_processes = None
        node.tool_state = None
        runtime.departed.add(node)

    # Coming back.

    def here(self, agent: int) -> Node | None:
        """Return the agent's node where it is in memory, put back where it had left; does not checkpoint.

        The caller closes the open group.
        """
        runtime = self._runtime
        node = runtime.nodes.get(agent)
        if node is None:
            node = runtime.departed.get(agent)
            if node is not None:
                self.put_back(node)
        return node

    def put_back(self, node: Node) -> None:
        """Have a node that may have left in the registry; does not checkpoint, and the caller closes the group."""
        runtime = self._runtime
        if runtime.nodes.get(node.id) is node:
            return
        if node.parent is not None:
            self.put_back(node.parent)
            if node.parent.children is None:
                node.parent.children = {}
            node.parent.children[node.id] = node
        runtime.nodes[node.id] = node
        runtime.departed.discard(node.id)
        runtime.cold.pop(node.id, None)
        self._catch_up(node)

    def _catch_up(self, node: Node) -> None:
        """A finished agent came back; what its parent went through meanwhile holds for it too."""
        parent = node.parent
        if parent is not None:
            if parent.sealed == "interrupted":
                node.sealed = "interrupted"
            elif node.session.status != "closed" and (parent.sealed or node.was_closed_with(parent)):
                self._runtime.record(node, (Closed(f"{parent.name} is closed"),))
        self.rest(node)

    async def bring_in(self, agents: Iterable[int]) -> None:
        """Have ``agents`` in memory; those that the store does not have, or has in other trees, are left out.

        They stay at least until the caller's next await. Checkpoints only where one is missing.

        Raises:
            StoreError: they cannot be read.
            UnknownToolError: one uses a tool that is not registered.
        """
        missing, nodes = [], []
        for agent in agents:
            node = self.here(agent)
            if node is not None:
                nodes.append(node)
            elif 0 < agent < self._runtime.next_agent:
                missing.append(agent)
        self._runtime.append()
        if not missing:
            return
        request = _Request(len(missing))
        for node in nodes:
            node.pins += 1
            request.nodes.append(node)
        for agent in missing:
            self._wanted.setdefault(agent, []).append(request)
        self.stir()
        try:
            await request.parked.wait()
        finally:
            for node in request.nodes:
                node.pins -= 1
        if request.error is not None:
            raise request.error

    def is_row(self, agent: int) -> bool:
        """Whether the agent is pending and not in memory."""
        return self._runtime.slots.rows.find(agent) >= 0 or agent in self._endings.aside

    # The task.

    def stir(self) -> None:
        """There is something to do."""
        parked, self._parked = self._parked, None
        if parked is not None and parked.task is not None:
            trio.lowlevel.reschedule(parked.task)
            parked.task = None

    async def run(self) -> None:
        """Bring in, end and let leave, a slice of each a pass. Runs until cancelled."""
        while True:
            try:
                is_busy = await self._work()
            except Exception as error:  # noqa: BLE001 - it is tried again, and others can still be brought in
                if self._runtime.journal.failed is not None:
                    await trio.sleep_forever()  # the swarm is being ended
                if not isinstance(error, (StoreError, ClosedError)):
                    _log.exception("agents cannot be brought into memory")
                await trio.sleep(_RETRY_SECONDS)
                continue
            if is_busy:
                await trio.lowlevel.checkpoint()
            else:
                self._parked = Parked()
                await self._parked.wait()

    async def _work(self) -> bool:
        """Do a slice of everything; return whether there is more to do now."""
        slots = self._runtime.slots
        if self._wanted:
            await self._serve()
        if slots.is_short:
            await self._fetch_ahead()
        if self._returns:
            await self._returns.give_back_some(self._load)
        if self._endings:
            await self._end_some()
        if not self._runtime.unfinished_roots and self._runtime.idle_waiters and not self.owes:
            for waiter in self._runtime.idle_waiters:
                waiter.notify()
        left = self.surplus > 0 and self._let_leave()
        return bool(left or self._wanted or self.owes or slots.is_short)

    async def _serve(self) -> None:
        """Bring in who is waited for, some hundreds together; where that fails each by itself, and told apart."""
        agents = list(islice(self._wanted, _SLICE))
        errors: dict[int, Exception] = {}
        try:
            await self._load(agents)
        except Exception:  # noqa: BLE001 - whoever waits for them gets it
            for agent in agents:
                try:
                    await self._load((agent,))
                except Exception as error:  # noqa: BLE001
                    errors[agent] = error
        for agent in agents:
            node = self._runtime.nodes.get(agent)
            for request in self._wanted.pop(agent):
                request.left -= 1
                request.error = request.error or errors.get(agent)
                if request.parked.task is None:
                    continue
                if node is not None:
                    node.pins += 1
                    request.nodes.append(node)
                if not request.left:
                    self._runtime.pump.post(request.parked)

    async def _fetch_ahead(self) -> None:
        """Bring in the rows whose turn is next."""
        slots = self._runtime.slots
        ahead = slots.places_ahead()
        found = [row for _, places in ahead for row in map(slots.rows.row, places) if row.seq]
        await self._load([row.agent for row in found])
        for line, places in ahead:
            slots.came_in(line, places[-1])
        slots.hand_on()

    async def _load(self, agents: Sequence[int]) -> None:
        """Make nodes of agents, rows among them, and of their ancestors."""
        runtime = self._runtime
        rows = runtime.slots.rows
        entries: list[Entry] = []
        others: list[int] = []
        for agent in agents:
            if self.here(agent) is not None:
                continue
            place = rows.find(agent)
            seq = rows.row(place).seq if place >= 0 else self._endings.aside.get(agent, 0)
            if seq:
                entries.append(Entry(agent, seq, 0, None))
            else:
                others.append(agent)
        runtime.append()
        self.row_mail.load_begins([entry.agent for entry in entries])
        try:
            await self._enter(entries, others)
        finally:
            self.row_mail.load_ends()

    async def _enter(self, entries: list[Entry], others: Sequence[int]) -> None:
        runtime = self._runtime
        if entries:
            await runtime.journal.durable(max([entry.last_seq for entry in entries]))
        entries += [Entry(head.agent, head.last_seq, head.snapshot_seq, head) for head in await self._heads(others)]
        loaded = await read_entries(runtime, entries)
        for entry, session, profile in sorted(loaded, key=lambda each: each[1].depth):
            if self.here(entry.agent) is not None:
                continue
            if entry.head is None and not self.is_row(entry.agent):
                continue  # the swarm was interrupted meanwhile
            if entry.head is None:
                self.row_mail.catch_up(session)
            node = enter(runtime, session, profile, entry.head)
            runtime.cold.pop(entry.agent, None)
            if entry.head is not None:
                self._catch_up(node)
            else:
                self._enter_row(node)
        runtime.append()

    async def _heads(self, agents: Sequence[int]) -> list[Head]:
        """Return the true heads of agents that have none in memory, and of their ancestors."""
        runtime = self._runtime
        found: dict[int, Head] = {}
        level = list(agents)
        while level:
            known = {agent: runtime.cold[agent] for agent in level if agent in runtime.cold}
            if asked := [agent for agent in level if agent not in known]:
                known.update({head.agent: head for head in await runtime.store.heads(agents=asked)})
            above: dict[int, None] = {}
            for agent, head in known.items():
                if head.root in self.taken_up:
                    found[agent] = head
                    if head.parent and self.here(head.parent) is None:
                        above[head.parent] = None
            runtime.append()
            level = [agent for agent in above if agent not in found]
        return list(found.values())

    # Rows.

    def _enter_row(self, node: Node) -> None:
        """A row was made a node: it waits in its place, or is ended at once."""
        runtime = self._runtime
        rows = runtime.slots.rows
        agent, parent = node.id, node.parent
        assert parent is not None
        self.row_mail.entered(agent)
        parent.rows -= 1
        node.is_counted = True
        node.waiters = self.waiters.pop(agent, None)
        handle = self.handles.pop(agent, None) if self.handles else None  # a miss costs more than all else here
        if handle is not None:
            handle.bind(node)
        place = rows.find(agent)
        ending = self._endings.get(parent.id)
        is_aside = self._endings.aside.pop(agent, 0) != 0
        if place >= 0:
            rows.take(place)
        if is_aside or (ending is not None and place < ending.end) or parent.sealed == "cancelled":
            node.sealed = "cancelled"
            node.stop = ("cancelled", ending.reason if ending else parent.stop[1] if parent.stop else "cancelled")
            node.is_told = ending is not None and ending.is_told
            end_sealed(runtime, node)
        else:
            node.is_queued = True
            node.sealed = parent.sealed
        if not parent.rows:
            self._endings.finish(parent.id)

    def end_rows(self, parent: Node, reason: str, *, is_told: bool = False) -> None:
        """End all rows below ``parent`` as cancelled; ``rows_gone`` tells when they are."""
        if parent.rows:
            self._endings.begin(parent.id, self._runtime.slots.rows, reason, is_told=is_told)
            self.stir()

    async def rows_gone(self, parent: Node) -> None:
        """Wait until the rows below ``parent`` that are to be ended are. Checkpoints only where there are some."""
        await self._endings.gone(parent.id)

    async def _end_some(self) -> None:
        """Set rows aside that are to be ended, and end a slice of those that were."""
        runtime = self._runtime
        aside = self._endings.aside
        if len(aside) < _SLICE:
            self._endings.scan(runtime.slots.rows)
        if aside:
            await self._load(list(islice(aside, _ENDED)))
            await runtime.journal.room()
            if self.surplus > _MAX_SURPLUS:  # those that were ended leave once that is durable
                await runtime.journal.durable(runtime.journal.next_seq - 1)
        runtime.slots.pass_ended()

    def drop_rows(self) -> None:
        """The swarm is interrupted: the store keeps what was pending."""
        self._runtime.slots.drop_rows()
        self._endings.clear()
        self._returns.clear()
        for node in self._runtime.nodes.values():
            node.unfinished_children -= node.rows
            node.rows = 0
        for waiters in self.waiters.values():
            for waiter in waiters:
                waiter.notify()
        self.waiters.clear()

    def return_later(self, node: Node) -> None:
        """Give back what a closed agent has not read, once those who wrote it are in memory."""
        self._returns.add(node)
        self.stir()

    async def give_back_of(self, node: Node) -> None:
        """Do so for an agent and its ancestors now; checkpoints and errors are those of ``bring_in``."""
        await self._returns.give_back_of(node, self.bring_in)

    def forget_waiter(self, agent: int, waiter: Waiter) -> None:
        """Who began to wait for a row waits no more, be the agent a row still or not."""
        node = self._runtime.nodes.get(agent)
        waiters = self.waiters.get(agent) if node is None else node.waiters
        if waiters and waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                self.waiters.pop(agent, None)


def _state_of(head: Head) -> tuple[int, int, int]:
    """What of a head changes whenever it does, but for how many agents there were elsewhere."""
    return head.last_seq, head.children, head.descendants
