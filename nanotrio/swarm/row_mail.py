"""Mail to pending agents that are not in memory: it is written down, and the agent stays where it is.

Theory of operation
-------------------
A mail to a row is one more record on the agent's chain, and the row's last record from then on: whoever makes a node of
the row reads it with the prompt. A load that is under way has read the chain as it was, so what comes meanwhile is kept
and applied as the node is made.

The head in the store falls behind. What it lacks, the last record and its time, is kept until the journal's next round,
which fetches the head from the store and writes it back. A head that is still to be committed with its group is taken
from there, and one of a former run that the store does not have is in ``runtime.cold``, and is changed there.

A row that is to be ended, or of which it is not known how many mails wait for it, takes no mail as it is: it is brought
in and asked like any other agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from .. import crash
from ..agent_name import name_of
from ..records import Fact, Head, MailKind
from ..session import Session
from .growing import kind_of
from .mailroom import write_mail
from .node import Node

if TYPE_CHECKING:
    from .row_endings import RowEndings
    from .runtime import Kind, Runtime

__all__ = ["OpenRow", "RowMail"]


class OpenRow(msgspec.Struct, frozen=True, gc=False):
    """A row that takes mail as it is."""

    agent: int
    name: str
    root: int


class RowMail:
    """Writes to the rows of one swarm."""

    __slots__ = ("_behind", "_coming_in", "_endings", "_runtime")

    def __init__(self, runtime: Runtime, endings: RowEndings) -> None:
        self._runtime = runtime
        self._endings = endings
        self._behind: dict[int, tuple[int, int]] = {}
        """Last record, and its time, of agents whose heads in the store do not say so."""
        self._coming_in: dict[int, list[tuple[int, int, Sequence[Fact]]]] = {}
        """Rows that are being loaded, and the records that they got since."""

    def open_row(self, agent: int) -> OpenRow | None:
        """Return the row of ``agent`` where it takes mail as it is; None where it has to be brought in, or is none."""
        runtime = self._runtime
        rows = runtime.slots.rows
        place = rows.find(agent)
        if place < 0 or rows.letters.get(agent) == 0:
            return None
        kind = rows.row(place).kind
        parent = runtime.nodes[kind.parent]
        ending = self._endings.get(parent.id)
        if parent.sealed or parent.session.status == "closed" or (ending is not None and place < ending.end):
            return None
        return OpenRow(agent, name_of(kind.stem, agent), parent.session.root)

    def deliver(self, row: OpenRow, kind: MailKind, sender: Node | None, text: str) -> int:
        """Put a mail on the chain of a row, within the open group; return the mail's id.

        Nothing may be awaited since ``open_row`` returned it.

        Raises:
            LimitError: its mailbox is full, or the text is too long.
        """
        runtime = self._runtime
        rows, agent = runtime.slots.rows, row.agent
        place = rows.find(agent)
        limits = self._kind_of(place).limits
        facts = (write_mail(runtime, row.name, limits, rows.letters.get(agent, 1), kind, sender, text),)
        seq, at_us = runtime.burst.extend(agent, rows.row(place).seq, facts)
        rows.write_to(place, seq)
        if (head := runtime.cold.get(agent)) is not None:
            runtime.cold[agent] = msgspec.structs.replace(head, last_seq=seq, updated_us=at_us)
        else:
            self._behind[agent] = (seq, at_us)
        runtime.journal.due.mark((agent,))
        if (coming := self._coming_in.get(agent)) is not None:
            coming.append((seq, at_us, facts))
        if crash.here is not None:
            crash.here("after-mail", agent)
        return seq

    def _kind_of(self, place: int) -> Kind:
        runtime = self._runtime
        kind = runtime.slots.rows.row(place).kind
        return kind_of(runtime, runtime.nodes[kind.parent], runtime.profile_values[kind.profile], None, kind.stem)

    # Loads.

    def load_begins(self, agents: Iterable[int]) -> None:
        """The chains of these rows are about to be read."""
        self._coming_in = {agent: [] for agent in agents}

    def load_ends(self) -> None:
        """No load is under way any more."""
        self._coming_in = {}

    def catch_up(self, session: Session) -> None:
        """Apply what a row got while its chain was read; a node is made of it now."""
        for seq, at_us, facts in self._coming_in.get(session.agent, ()):
            session.begin_record(seq, at_us)
            session.apply_facts(facts)

    def entered(self, agent: int) -> None:
        """A node was made of the row: its head is the node's from now on."""
        self._behind.pop(agent, None)

    # Heads.

    async def heads(self, agents: Sequence[int]) -> list[Head]:
        """Return the true heads of agents that got mail as rows, for the journal. Checkpoints.

        Raises:
            StoreError: they cannot be read.
        """
        runtime = self._runtime
        heads = {head.agent: head for head in await runtime.store.heads(agents=agents)}
        if len(heads) < len(agents):
            heads.update({head.agent: head for head in runtime.journal.due.given(set(agents) - heads.keys())})
        here = {head.agent: head for head in runtime.dirty_heads(agents)}  # who came in meanwhile
        for agent, head in heads.items():
            if agent not in here and (behind := self._behind.get(agent)) is not None:
                here[agent] = msgspec.structs.replace(head, last_seq=behind[0], updated_us=behind[1])
        return list(here.values())

    def committed(self, heads: Sequence[Head]) -> None:
        """The journal has written these heads."""
        behind = self._behind
        if behind:
            for head in heads:
                known = behind.get(head.agent)
                if known is not None and known[0] == head.last_seq:
                    del behind[head.agent]
