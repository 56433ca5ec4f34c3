"""Which agents wait for which, and whether one more wait would never end.

Theory of operation
-------------------
An agent is finished when its turn has ended and nothing below it runs. So two things can hold it up: an agent that it
waits for, and each unfinished agent below it. Call both edges, from who is held up to what holds it up. Agents on a
ring of edges wait for ever; none is there as long as the call that would close one is refused, so only that call has to
be looked at, at the moment it is made.

A wait for one's own descendants adds no edge that is not there, so only waits for others are kept: by target, as what
is asked is who is held up by the caller. From the caller it goes backwards, to its parent and to those who wait for
it, and so on: these are the *suspects*. A wait for *all* of its targets is held up by any suspect among them, a wait
for *any* only if every target is one; so suspects with a way out are struck off until none is left that has one. If
the caller is still there, its call would close a ring.

A lineage is an agent's id, its parent's, and so on up to the root's. The cost of a call is a walk up its lineage where
its targets, and those below them, wait for nobody outside themselves; else it grows with the number of suspects.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

__all__ = ["WaitGraph"]

Mode: TypeAlias = Literal["any", "all"]


class _Wait:
    """One call that waits; ``targets`` are those that have not ended since."""

    __slots__ = ("lineage", "mode", "targets")

    def __init__(self, lineage: tuple[int, ...], targets: Iterable[int], mode: Mode) -> None:
        self.lineage = lineage
        self.targets = set(targets)
        self.mode = mode

    @property
    def agent(self) -> int:
        return self.lineage[0]


class WaitGraph:
    """The waits of one swarm's agents for agents that are not below them; plain data, agents are numbers."""

    __slots__ = ("_below", "by_agent", "by_target")

    def __init__(self) -> None:
        self.by_target: dict[int, set[_Wait]] = {}
        self.by_agent: dict[int, list[_Wait]] = {}
        self._below: dict[int, int] = {}
        """How many waits an agent and those below it have."""

    def add(self, lineage: Sequence[int], targets: Iterable[int], mode: Mode) -> None:
        """The first of ``lineage`` waits for ``targets``, of which none is below it; told again, it is no news."""
        wait = _Wait(tuple(lineage), targets, mode)
        for each in self.by_agent.get(wait.agent, ()):
            if (each.targets, each.mode) == (wait.targets, mode):
                return
        for target in wait.targets:
            self.by_target.setdefault(target, set()).add(wait)
        self.by_agent.setdefault(wait.agent, []).append(wait)
        for agent in wait.lineage:
            self._below[agent] = self._below.get(agent, 0) + 1

    def ended(self, agent: int) -> None:
        """An agent is finished; a wait for any is over by that, one for all goes on with the rest of its targets."""
        for wait in self.by_target.pop(agent, ()):
            wait.targets.discard(agent)
            if wait.mode == "any" or not wait.targets:
                self._remove(wait)

    def drop(self, agent: int) -> None:
        """An agent waits for nobody any more."""
        for wait in self.by_agent.get(agent, [])[:]:
            self._remove(wait)

    def _remove(self, wait: _Wait) -> None:
        for target in wait.targets:
            waits = self.by_target[target]
            waits.discard(wait)
            if not waits:
                del self.by_target[target]
        own = self.by_agent[wait.agent]
        own.remove(wait)
        if not own:
            del self.by_agent[wait.agent]
        for each in wait.lineage:
            self._below[each] -= 1
            if not self._below[each]:
                del self._below[each]

    def ring(self, lineage: Sequence[int], targets: Sequence[int], mode: Mode) -> list[int] | None:
        """Return the ring that a wait of the first of ``lineage`` would close, or None where it would close none.

        The ring is told from the first whom the caller would wait for to the last, who waits for the caller: of those
        that lie one below the other only the ends are named. Waiting for itself, it is empty.
        """
        may_lead_back = [target in lineage or target in self._below for target in targets]
        if not (all(may_lead_back) if mode == "any" else any(may_lead_back)):
            return None
        suspects = _Suspects(self, _Wait(tuple(lineage), targets, mode))
        return suspects.way_back() if suspects.holds() else None


class _Suspects:
    """Those whom a wait would hold up, found anew for each call that might close a ring."""

    def __init__(self, graph: WaitGraph, wait: _Wait) -> None:
        self._graph = graph
        self._wait = wait
        self._children: dict[int, set[int]] = {}
        """The suspects, and those of their children that are suspects too."""
        self._enter(wait.lineage)
        self._held: dict[_Wait, int] = {}
        """The waits of suspects, with the number of targets that are suspects."""
        for agent in self._children:
            for each in self._waits_of(agent):
                self._held[each] = len(each.targets & self._children.keys())

    def _enter(self, lineage: Sequence[int]) -> None:
        """Find all who wait for one of ``lineage``, for one who waits for them, and so on; and all above these."""
        found = self._climb(lineage)
        while found:
            for wait in self._graph.by_target.get(found.pop(), ()):
                found += self._climb(wait.lineage)

    def _climb(self, lineage: Sequence[int]) -> list[int]:
        """Enter an agent and its ancestors, up to the first that is known; return those that were not."""
        fresh = []
        below = 0
        for agent in lineage:
            is_known = agent in self._children
            children = self._children.setdefault(agent, set())
            if below:
                children.add(below)
            if is_known:
                break
            fresh.append(agent)
            below = agent
        return fresh

    def _waits_of(self, agent: int) -> list[_Wait]:
        waits = self._graph.by_agent.get(agent, [])
        return [*waits, self._wait] if agent == self._wait.agent else waits

    def _is_held(self, wait: _Wait) -> bool:
        held = self._held[wait]
        return held == len(wait.targets) if wait.mode == "any" else held > 0

    def holds(self) -> bool:
        """Strike off all who have a way out; return whether the caller has none."""
        parents = {child: agent for agent, children in self._children.items() for child in children}
        reasons = {
            agent: len(children) + sum(self._is_held(wait) for wait in self._waits_of(agent))
            for agent, children in self._children.items()
        }
        free = [agent for agent, count in reasons.items() if not count]
        while free:
            agent = free.pop()
            del self._children[agent]
            freed = []
            if (parent := parents.get(agent)) in self._children:
                self._children[parent].discard(agent)
                freed.append(parent)
            for wait in [*self._graph.by_target.get(agent, ()), self._wait]:
                if agent in wait.targets and wait in self._held:
                    was_held = self._is_held(wait)
                    self._held[wait] -= 1
                    if was_held and not self._is_held(wait):
                        freed.append(wait.agent)
            for each in freed:
                reasons[each] -= 1
                if not reasons[each] and each in self._children:
                    free.append(each)
        return self._wait.agent in self._children

    def way_back(self) -> list[int]:
        """Return the shortest way from a target of the caller's wait back to the caller."""
        caller = self._wait.agent
        came_from: dict[int, tuple[int, bool]] = {}
        ahead = deque([(target, 0, False) for target in sorted(self._wait.targets) if target in self._children])
        while ahead:
            agent, before, is_below = ahead.popleft()
            if agent in came_from:
                continue
            came_from[agent] = (before, is_below)
            if agent == caller:
                break
            for wait in self._waits_of(agent):
                if self._is_held(wait):
                    ahead.extend((target, agent, False) for target in sorted(wait.targets) if target in self._children)
            ahead.extend((child, agent, True) for child in sorted(self._children[agent]))
        way: list[int] = []
        agent, left_downwards = caller, False
        while agent:
            before, is_below = came_from[agent]
            if agent != caller and not (is_below and left_downwards):
                way.append(agent)
            agent, left_downwards = before, is_below
        return way[::-1]
