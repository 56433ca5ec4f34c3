"""Who may be active: slots, and the queue before them.

An active agent holds a slot. One that waits for a child, mail, a reservation or a rate limit gives it back. A slot that
comes free is handed on in the same moment, so nobody is woken to look. It goes

1. to who *returns*: its turn is open, or its descendants are unfinished, and a task of it waits or has ended meanwhile;
2. to roots, and to agents that had a turn before and got mail: whoever asks them waits for an answer;
3. to children that were never started: roots take turns, a child each, and each root's come in their order.

The last two wait too while there is no room for one more that lives. Of the children some hundreds are in memory; the
others are ``rows``, of which the next ones of each root are brought in before their turn (``lines.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from .lines import Line
from .node import Node
from .pump import Parked, Pump
from .rows import RowKind, Rows

__all__ = ["Slots"]

MAX_RESIDENT = 1_024
"""Pending agents in memory; further ones are rows."""
AHEAD = 1_024
"""Rows that are brought into memory before it is their turn, shared by the roots."""
_MIN_SHARE = 4
_FETCHED = 128
"""So many at a time."""
_PASSED = 4_096


class Slots:
    """The slots of one swarm.

    ``launch`` starts a pending agent in its own parent's nursery; ``has_room`` says whether one more may live. While
    nobody is active one is started in any case, or agents that wait for pending children would wait for ever.
    ``nodes`` is the registry of agents in memory, and ``on_short`` is called where rows are to be brought into it.
    """

    __slots__ = (
        "_has_room",
        "_held",
        "_in_memory",
        "_launch",
        "_lines",
        "_max_active",
        "_nodes",
        "_on_short",
        "_pump",
        "_returning",
        "_round",
        "_short",
        "_woken",
        "active",
        "ahead",
        "max_resident",
        "rows",
    )

    def __init__(
        self,
        max_active: int,
        pump: Pump,
        launch: Callable[[Node], None],
        has_room: Callable[[], bool],
        nodes: Mapping[int, Node] | None = None,
        on_short: Callable[[], None] = lambda: None,
    ) -> None:
        self._nodes = {} if nodes is None else nodes
        self._on_short = on_short
        self.rows = Rows()
        self.ahead = AHEAD
        self.max_resident = MAX_RESIDENT
        self._has_room = has_room
        self._max_active = max_active
        self._pump = pump
        self._launch = launch
        self._returning: deque[tuple[Node, Parked | None]] = deque()
        """Tasks that are parked, and nodes whose task has ended meanwhile."""
        self._woken: deque[Node] = deque()
        self._lines: dict[int, Line] = {}
        """By root; each is in the round, or stalls."""
        self._round: deque[Line] = deque()
        self._short: dict[int, Line] = {}
        """Lines of which rows are to be brought into memory."""
        self._in_memory = 0
        """Never-started children in memory that are no rows."""
        self._held = 0
        self.active = 0

    @property
    def max_active(self) -> int:
        """How many agents may be active at once."""
        return self._max_active

    @property
    def pending(self) -> int:
        """Agents that wait to be started."""
        return len(self._woken) + self._in_memory + self.rows.waiting

    def are_rows_due(self, root: int) -> bool:
        """Whether a further pending child below ``root`` is to be a row."""
        if self._in_memory >= self.max_resident:
            return True
        line = self._lines.get(root)
        return line is not None and line.has_rows

    @property
    def is_short(self) -> bool:
        """Whether further rows are to be brought into memory."""
        return bool(self._short) and self.ahead > 0 and not self._held

    def enqueue(self, node: Node) -> None:
        """Start ``node`` when a slot is free; a node that is queued already stays where it is."""
        if node.is_queued:
            return
        node.is_queued = True
        session = node.session
        if session.status in ("running", "settling") or node.unfinished_children:
            self._returning.append((node, None))
        elif node.parent is None or session.turns:
            self._woken.append(node)
        else:
            self._line(session.root).in_memory.append((self.rows.end, node))
            self._in_memory += 1
        self.hand_on()

    def push_rows(self, root: int, agent: int, seq: int, count: int, kind: RowKind) -> None:
        """Queue ``count`` rows below ``root``, alike, numbered on from ``agent`` and ``seq``."""
        start = self.rows.push_many(agent, seq, count, kind)
        self._add_places(root, start)

    def extend_rows(self, root: int, rows: Rows) -> None:
        """Queue all of ``rows``, which are below ``root`` and of which none was passed."""
        start = self.rows.end
        self.rows.extend(rows)
        self._add_places(root, start)

    def _add_places(self, root: int, start: int) -> None:
        if start == self.rows.end:
            return
        line = self._line(root)
        line.far.push(start, self.rows.end)
        self._check_short(line)

    def drop_rows(self) -> None:
        """Forget all rows."""
        self.rows.clear()
        self._short.clear()
        for line in list(self._lines.values()):
            line.drop_rows()
            self._put_back(line)

    def _line(self, root: int) -> Line:
        line = self._lines.get(root)
        if line is None:
            line = self._lines[root] = Line(root)
            line.is_in_round = True
            self._round.append(line)
        return line

    async def acquire(self, node: Node) -> None:
        """Take a slot for an agent that returns from waiting. A no-op without a checkpoint where it holds one."""
        if node.has_slot:
            return
        if self.active < self._max_active and not self._returning:
            self.active += 1
            node.has_slot = True
            return
        parked = Parked()
        self._returning.append((node, parked))
        try:
            await parked.wait()
        except BaseException:
            self.release(node)  # it may have been handed one while it was being cancelled
            raise

    def release(self, node: Node) -> None:
        """Give the slot back and hand it on. A no-op where the agent holds none."""
        if node.has_slot:
            node.has_slot = False
            self.active -= 1
        if self._returning or self._woken or self._round:
            self.hand_on()

    def hand_on(self) -> None:
        """Hand out the slots that are free."""
        while self.active < self._max_active:
            if self._returning:
                self._return(*self._returning.popleft())
            elif (self._woken or (self._round and not self._held)) and (self.active == 0 or self._has_room()):
                node = self._next()
                if node is None:
                    return
                self._start(node)
            else:
                return

    @contextmanager
    def children_held(self) -> Iterator[None]:
        """Within the block no child is started for the first time, so that all who are to return come before."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            self.hand_on()
            if self.is_short:
                self._on_short()

    def _return(self, node: Node, parked: Parked | None) -> None:
        if parked is None:
            if node.is_queued and not node.has_slot:
                self._start(node)
        elif parked.task is not None:
            if not node.has_slot:  # two calls of one agent may come back together
                self.active += 1
                node.has_slot = True
            self._pump.post(parked)

    def _start(self, node: Node) -> None:
        self.active += 1
        node.has_slot = True
        self._pump.post_start(partial(self._launch, node))

    def _next(self) -> Node | None:
        """Take the next agent to be started; None where there is none, or none is in memory yet."""
        while self._woken:
            node = self._woken.popleft()
            if node.is_queued and not node.has_slot:
                return node
        turns = self._round
        while turns and not self._held:
            line = turns.popleft()
            found = self._first_of(line)
            if found is not None:
                turns.append(line)
                return found
            line.is_in_round = False
            if line:
                self._check_short(line)
            else:
                del self._lines[line.root]
                self._short.pop(line.root, None)
        return None

    def _first_of(self, line: Line) -> Node | None:
        """Take the first of a line; None where it is empty, or stalls."""
        rows = self.rows
        while True:
            place = line.first_place()
            node: Node | None
            if line.in_memory and (place < 0 or line.in_memory[0][0] <= place):
                node = line.in_memory.popleft()[1]
                self._in_memory -= 1
            elif place >= 0:
                agent, was_taken = rows.peek(place)
                if not was_taken:
                    return None
                self._pass_over(line, place)
                node = self._nodes.get(agent)
            else:
                return None
            # It may have been ended, or stand here twice for having been ended.
            if node is not None and node.is_queued and not node.has_slot:
                return node

    def _pass_over(self, line: Line, place: int) -> None:
        line.pass_first_place()
        self.rows.pass_over(place)
        self._check_short(line)

    def pass_ended(self) -> None:
        """Pass rows that were ended, some thousands, so that they are not in the way of a free slot."""
        left = _PASSED
        for line in list(self._lines.values()):
            while left and (place := line.first_place()) >= 0:
                agent, was_taken = self.rows.peek(place)
                node = self._nodes.get(agent)
                if not was_taken or (node is not None and node.is_queued and not node.has_slot):
                    break
                self._pass_over(line, place)
                left -= 1
            self._put_back(line)
        self.hand_on()

    # Bringing rows in before their turn.

    @property
    def _share(self) -> int:
        return max(_MIN_SHARE, self.ahead // max(1, len(self._lines)))

    def _check_short(self, line: Line) -> None:
        if line.far and len(line.near) * 4 <= self._share * 3 and line.root not in self._short:
            self._short[line.root] = line
            self._on_short()

    def places_ahead(self) -> list[tuple[Line, list[int]]]:
        """Return the places to be brought in next, some hundred at most, by line; ``came_in`` says that they are."""
        share = self._share
        each = max(1, _FETCHED // max(1, len(self._short)))
        found: list[tuple[Line, list[int]]] = []
        for root in list(self._short)[:_FETCHED]:
            line = self._short[root]
            places = line.far.some(min(each, share - len(line.near)))
            if places:
                found.append((line, places))
            else:
                del self._short[root]
        return found

    def came_in(self, line: Line, last: int) -> None:
        """The rows of ``line`` up to the place ``last`` are in memory; ``hand_on`` is to follow."""
        line.come_near(last)
        if not line.far or len(line.near) >= self._share:
            self._short.pop(line.root, None)
        self._put_back(line)

    def _put_back(self, line: Line) -> None:
        """Let a line that stalled have the next turn; it is forgotten there if it is empty."""
        if not line.is_in_round and self._lines.get(line.root) is line:
            line.is_in_round = True
            self._round.appendleft(line)
