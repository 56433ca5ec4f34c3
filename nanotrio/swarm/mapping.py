"""``swarm.map``: one prompt put to an agent for each of many items, as a stream of results in the items' order.

Theory of operation
-------------------
A map has no task of its own. ``MapResults.__anext__`` does the work in the task of whoever takes results: it reads
items, starts agents for them while fewer than ``max_active`` are at work, and sleeps until one has ended or the first
item of the window is done. So nothing is held but the *window*: the items between the next result and the last one that
was started, at most ``look_ahead`` of them. A slow taker slows the items, and a slow item holds its successors' results
back, never more than a window of them.

The agents are children of the job's root (``map_job.py``), which is told of each end without an await by the node's
``on_child_end``. Where the job was begun before, the first thing known of an item is its agents of then::

    item --its prompt cannot be made-----------------------------------------------> final: failed, without an agent
         --an agent of this digest completed, or failed in its last try-----------> final, from the store
         --an agent of this digest is unfinished-----------------------> at work --> ended
         --else-------------------------------------------> to be started -> at work --> ended
    ended --failed, and tries are left--> to be started
          --else--> final

Results are given out once their records are durable; and since records are written in order, what a result stands on is
durable with it. Killed at any instant, the job finds the agents that the store has, and every item is in one of the
states above.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec
import trio

from ..errors import BudgetError, ClosedError, LimitError, UsageError
from ..limits import usd
from ..messages import Usage
from ..records import OutcomeStatus, Profile
from .agent import Agent
from .map_job import Earlier, Found, begin_job, digest_of, find_job, item_name, look_up
from .map_source import NO_MORE, NOTHING_YET, Source
from .map_values import MapOptions, MapResult, MapStatistics, Plan, plan_of, without
from .node import Node
from .outcome import Outcome, convert_result, outcome_of
from .runtime import Runtime
from .spawning import SpawnOptions, profile_of

if TYPE_CHECKING:
    from .swarm import Swarm

__all__ = ["MapResults", "open_map"]

_SLICE = 256
"""Agents that are started, or looked up, at once."""
_TRIED_AGAIN = ("failed", "deadline_exceeded")


class _Entry:
    """An item in the window."""

    __slots__ = ("agents", "digest", "final", "index", "item", "prompt", "seq", "spent", "tries", "usage")

    def __init__(self, index: int, item: Any) -> None:
        self.index = index
        self.item = item
        self.prompt = ""
        self.digest = ""
        self.agents: list[tuple[int, str]] = []
        self.tries = 0
        """Agents that failed, or are at work."""
        self.spent = (0, 0, 0)
        self.usage = Usage()
        self.seq = 0
        self.final: MapResult | None = None

    def add(self, outcome: Outcome, seq: int) -> None:
        """Count what an agent of it used."""
        cost, uncertain, unpriced = self.spent
        self.spent = (cost + outcome.cost_nano, uncertain + outcome.uncertain_nano, unpriced + outcome.unpriced)
        self.usage += outcome.usage
        self.seq = max(self.seq, seq)

    def end(self, status: OutcomeStatus, reason: str, result: Any = None, text: str = "") -> None:
        """Nothing more is done for it."""
        agent, name = self.agents[-1] if self.agents else (0, "")
        counts = (*self.spent, self.usage, len(self.agents), agent, name)
        self.final = MapResult(self.index, self.item, status, result, text, reason, *counts)
        self.prompt = ""


class MapResults:
    """The results of a map, in the order of its items; made by ``swarm.map``. One task at a time may take them.

    Attributes:
        agent: the job's root: cancelling it ends the job, and its view has what the job cost so far.
        job: the job's id.
    """

    def __init__(self, swarm: Swarm, root: Node, plan: Plan, earlier: Earlier, items: Any) -> None:
        runtime = swarm._runtime  # noqa: SLF001 - a map is part of its swarm
        assert runtime.roots is not None
        self.agent = Agent(swarm, root)
        self.job = plan.job
        self._swarm = swarm
        self._runtime: Runtime = runtime
        self._root = root
        self._plan = plan
        self._earlier = earlier
        self._kind = _kind_digest(runtime, profile_of(runtime, root, plan.child))
        runtime.append()
        self._news = trio.Event()
        self._source = Source(items, runtime.roots, self._tell)
        self._window: deque[_Entry] = deque()
        self._to_restore: list[_Entry] = []
        self._to_start: deque[_Entry] = deque()
        self._stale: list[int] = []
        """Unfinished agents of items that have changed, to be cancelled."""
        self._at_work: dict[int, _Entry] = {}
        self._ended: deque[tuple[int, Outcome, int]] = deque()
        self._is_rest_known = self._is_taken = False
        self._closed = ""
        self._items = self._completed = self._failed = self._restored = 0
        root.on_child_end = self._on_child_end

    def __aiter__(self) -> Self:
        """Return the stream itself."""
        return self

    async def __anext__(self) -> MapResult:
        """Return the next item's result, which is durable. Cancelling it loses nothing. Checkpoints.

        Raises:
            UsageError: another task waits for one.
        """
        if self._is_taken:
            raise UsageError("two tasks take results of one map; let one take them and hand them on")
        self._is_taken = True
        try:
            return await self._next()
        finally:
            self._is_taken = False

    async def _next(self) -> MapResult:
        while True:
            if self._closed:
                raise ClosedError(f"{self._closed}; the same map with its job goes on from there")
            self._take_ended()
            has_moved = await self._fill()
            self._take_ended()
            first = self._window[0] if self._window else None
            if first is not None and first.final is not None:
                if first.seq > self._runtime.journal.durable_seq:
                    await self._runtime.journal.durable(first.seq)
                await trio.lowlevel.checkpoint()
                self._window.popleft()
                return first.final
            if first is None and self._source.is_over:
                if self._source.error is not None:
                    raise self._source.error
                raise StopAsyncIteration
            if not has_moved:
                await self._news.wait()
                self._news = trio.Event()

    def statistics(self) -> MapStatistics:
        """Return counts; does not checkpoint."""
        active = len(self._at_work) - len(self._ended)
        return MapStatistics(self._items, self._completed, self._failed, self._restored, active)

    async def aclose(self) -> None:
        """Start no more; what is at work goes on. Checkpoints."""
        self._root.on_child_end = None
        self._closed = self._closed or "the map's block was left"
        self._news.set()
        await self._source.aclose()

    def _on_child_end(self, node: Node) -> None:
        if node.id not in self._at_work:
            return
        session = node.session
        if node.sealed == "interrupted" or session.ended is None:
            self._closed = f"{node.name} was interrupted"
        else:
            self._ended.append((node.id, outcome_of(session), session.last_seq))
        self._tell()

    def _tell(self) -> None:
        self._news.set()

    def _take_ended(self) -> None:
        while self._ended:
            agent, outcome, seq = self._ended.popleft()
            entry = self._at_work.pop(agent)
            entry.add(outcome, seq)
            self._conclude(entry, outcome)

    def _judge(self, outcome: Outcome) -> tuple[OutcomeStatus, str, Any]:
        """Return status, reason and result of an agent, whose result is to be of the type that was asked for."""
        wanted = self._plan.child.get("result_type")
        if outcome.status == "completed" and wanted is not None and not isinstance(wanted, dict | str):
            try:
                return outcome.status, outcome.reason, convert_result(outcome.result, wanted)
            except Exception as error:  # noqa: BLE001 - also whatever the type's own code raises
                told = str(error) if isinstance(error, msgspec.ValidationError) else f"{type(error).__name__}: {error}"
                return "failed", f"the result is no {getattr(wanted, '__name__', wanted)}: {told}", None
        return outcome.status, outcome.reason, outcome.result

    def _conclude(self, entry: _Entry, outcome: Outcome) -> None:
        """The item's last agent has ended: is the item done, or tried again?"""
        status, reason, result = self._judge(outcome)
        if status in _TRIED_AGAIN and entry.tries <= self._plan.retries:
            self._to_start.append(entry)
            return
        self._end(entry, status, reason, result, outcome.last_text)

    def _end(self, entry: _Entry, status: OutcomeStatus, reason: str, result: Any = None, text: str = "") -> None:
        entry.end(status, reason, result, text)
        if status == "completed":
            self._completed += 1
        else:
            self._failed += 1

    async def _fill(self) -> bool:
        """Read items and start agents as far as there is room; return whether anything was done."""
        room = min(self._plan.max_active - len(self._at_work), _SLICE)
        has_moved = self._read(room)
        if self._source.is_over and not self._is_rest_known and self._source.error is None:
            await self._look_at_rest()
        while self._stale:
            await (await self._swarm.resume(self._stale[-1])).cancel()
            self._stale.pop()
        if self._to_restore:
            await self._restore(list(self._to_restore))
            self._to_restore.clear()
        if room > 0 and self._to_start:
            if self._runtime.journal.is_full:
                await self._runtime.journal.room()
            self._start([self._to_start.popleft() for _ in range(min(room, len(self._to_start)))])
            has_moved = True
        return has_moved

    def _read(self, room: int) -> bool:
        """Put items into the window: as many as can be started, and those that the store may know."""
        plan = self._plan
        free = plan.look_ahead - len(self._window)
        if self._window and free < plan.look_ahead // 8:  # what is known is better read in slices
            return False
        has_moved = False
        while free > 0 and len(self._to_restore) < _SLICE:
            is_known = bool(self._earlier.agents(self._items))
            if not is_known and len(self._to_start) >= room:
                break
            item = self._source.take()
            if item is NO_MORE or item is NOTHING_YET or not (self._items or self._is_fit(item)):
                break
            entry = self._admit(item)
            has_moved = True
            free -= 1
            if entry.final is None:
                (self._to_restore if is_known else self._to_start).append(entry)
        return has_moved

    def _is_fit(self, first: Any) -> bool:
        """Look at the first item; if the template is not for such items, none is taken, and the stream says so."""
        try:
            self._plan.check(first)
        except UsageError as error:
            self._source.fail(error)
            return False
        return True

    def _admit(self, item: Any) -> _Entry:
        """Put an item into the window."""
        entry = _Entry(self._items, item)
        self._items += 1
        self._window.append(entry)
        plan = self._plan
        try:
            entry.prompt = plan.render(item)
            key = plan.key(item) if plan.key is not None else _content(item)
            entry.digest = digest_of(self._kind, key, entry.prompt.encode(errors="surrogatepass"))
        except Exception as error:  # noqa: BLE001 - a failed item is a value
            reason = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
            self._end(entry, "failed", f"item {entry.index} has no prompt: {reason}")
        return entry

    async def _restore(self, entries: list[_Entry]) -> None:
        """Find out what the agents of former runs came to."""
        ids = {agent: entry for entry in entries for agent in self._earlier.agents(entry.index)}
        self._at_work.update(ids)  # before anything is awaited, so that no end is missed
        try:
            found = await look_up(self._runtime, list(ids))
        except BaseException:
            self._forget(ids)
            raise
        ended = {agent: (outcome, seq) for agent, outcome, seq in self._ended if agent in ids}
        open_agents = {each.agent for each in found if each.outcome is None} - ended.keys()
        self._forget(ids.keys() - open_agents)
        by_item: dict[int, list[Found]] = {}
        for each in found:
            if each.outcome is None and each.agent in ended:
                outcome, seq = ended[each.agent]
                each = msgspec.structs.replace(each, outcome=outcome, last_seq=seq)  # noqa: PLW2901
            entry = ids[each.agent]
            if each.digest == entry.digest:
                by_item.setdefault(entry.index, []).append(each)
            elif each.outcome is None:  # the item was another one then
                self._forget((each.agent,))
                self._stale.append(each.agent)
        for entry in entries:
            self._take_up(entry, by_item.get(entry.index, []))

    def _forget(self, agents: Iterable[int]) -> None:
        gone = set(agents)
        for agent in gone:
            self._at_work.pop(agent, None)
        self._ended = deque([each for each in self._ended if each[0] not in gone])

    def _take_up(self, entry: _Entry, found: list[Found]) -> None:
        """Go on with an item where its agents stopped."""
        is_at_work = False
        last: Outcome | None = None
        status: OutcomeStatus = "completed"
        for each in found:
            entry.agents.append((each.agent, each.name))
            outcome = each.outcome
            if outcome is None:
                is_at_work = True
                entry.tries += 1
                continue
            entry.add(outcome, each.last_seq)
            last, (status, _, _) = outcome, self._judge(outcome)
            entry.tries += status in _TRIED_AGAIN
        if is_at_work:
            return
        if last is not None and self._plan.retry_failed and status != "completed":
            last, entry.tries = None, 0
        if last is None or status in ("cancelled", "budget_exceeded"):
            self._to_start.append(entry)
            return
        self._conclude(entry, last)
        self._restored += entry.final is not None

    def _start(self, entries: list[_Entry], options: SpawnOptions | None = None) -> None:
        """Start an agent for each of ``entries``. Where they cannot be had all at once, those that can be are."""
        wanted = self._plan.child if options is None else options
        names = [item_name(entry.index, entry.digest) for entry in entries]
        prompts = [entry.prompt for entry in entries]
        try:
            agents = self._swarm.spawn_below_nowait(self._root, prompts, wanted, names)
        except ClosedError as error:
            if self._root.sealed != "cancelled" and self._root.session.status != "closed":
                self._to_start.extendleft(reversed(entries))
                raise
            for entry in entries:
                self._end(entry, "cancelled", str(error))
            return
        except (UsageError, LimitError) as error:
            if len(entries) == 1:
                self._refuse(entries[0], error, is_capped=options is None)
                return
            for entry in entries:
                self._start([entry])
            return
        self._runtime.append()
        for entry, agent in zip(entries, agents, strict=True):
            self._at_work[agent.id] = entry
            entry.agents.append((agent.id, agent.name))
            entry.tries += 1

    def _refuse(self, entry: _Entry, error: UsageError | LimitError, *, is_capped: bool) -> None:
        """No agent can be started for the item as it was asked for."""
        if not isinstance(error, BudgetError):
            self._end(entry, "failed", str(error))
        elif is_capped and "budget_usd" in self._plan.child:  # the job has less left than that, and so caps it tighter
            self._start([entry], cast("SpawnOptions", without(self._plan.child, "budget_usd")))
        else:
            self._end(entry, "budget_exceeded", str(error))

    async def _look_at_rest(self) -> None:
        """Find what former runs left unfinished of items that are no more; it is cancelled.

        Not where reading the items failed: then nobody knows which are no more.
        """
        stale: list[int] = []
        for start in range(self._items, len(self._earlier), _SLICE):
            indices = range(start, min(start + _SLICE, len(self._earlier)))
            ids = [agent for index in indices for agent in self._earlier.agents(index)]
            stale += [each.agent for each in await look_up(self._runtime, ids) if each.outcome is None]
        self._stale += stale
        self._is_rest_known = True


@asynccontextmanager
async def open_map(
    swarm: Swarm,
    prompt: str | Callable[[Any], str],
    items: Iterable[Any] | AsyncIterable[Any],
    options: MapOptions,
) -> AsyncIterator[MapResults]:
    """Begin a job, or go on with one, and stop starting agents when the block is left; see ``Swarm.map``."""
    runtime = swarm._runtime  # noqa: SLF001 - a map is part of its swarm
    if isinstance(items, str | bytes):  # of which each character would be an item
        raise UsageError("the items are one text; give a list, or lines of an open file")
    if not isinstance(items, Iterable | AsyncIterable):
        raise UsageError(f"the items are a {type(items).__name__}, which cannot be gone through")
    plan = plan_of(prompt, options, runtime.slots.max_active)
    root, earlier = await _root(swarm, plan)
    if root.on_child_end is not None:
        raise UsageError(f"the job {plan.job} is being mapped already; leave that block first")
    results = MapResults(swarm, root, plan, earlier, items)
    try:
        yield results
    finally:
        await results.aclose()


async def _root(swarm: Swarm, plan: Plan) -> tuple[Node, Earlier]:
    """Return the job's root, resumed or new, and the agents it has; what is checked here fails before it is made."""
    runtime = swarm._runtime  # noqa: SLF001
    await runtime.journal.room()
    async with runtime.naming:  # else two that begin one job at once make two roots
        found, earlier = await find_job(runtime, plan.job) if plan.goes_on else (0, Earlier())
        if not found:
            profile_of(runtime, None, plan.child)
            node = begin_job(runtime, plan.root)
    if not found:
        await runtime.journal.durable(runtime.append())
        return node, earlier
    agent = await swarm.resume(found)
    node = runtime.nodes[found]
    if node.limits.budget_nano != plan.budget_nano:
        await agent.set_budget(None if plan.budget_nano is None else usd(plan.budget_nano))
    return node, earlier


def _content(item: Any) -> bytes:
    if isinstance(item, str):
        return item.encode(errors="surrogatepass")
    try:
        return msgspec.json.encode(item, order="deterministic")
    except (TypeError, ValueError):  # then its prompt tells it from others
        return b""


def _kind_digest(runtime: Runtime, profile: Profile) -> bytes:
    """Tell what is asked of every item from what was asked otherwise."""
    system = runtime.systems[profile.system]
    tools = (profile.tools, profile.denied_tools, profile.allowed_tools, profile.permission_mode)
    return digest_of(msgspec.json.encode((profile.model, system, profile.result_schema, tools))).encode()
