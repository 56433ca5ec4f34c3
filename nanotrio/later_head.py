"""A head brought up to date by the records after it, without the chain before.

Theory of operation
-------------------
A head has all that it takes to go on counting, so it is made a session without a conversation and the facts are applied
to that, by the same code as ever. Three things a head does not tell: which mail was unread, whether such mail of a
closed agent is to go back, and of which usage the parent was told. An agent that reads its mail, closes or settles
makes them known again; where that did not happen and it matters, there is no answer here, and whoever asks reads the
chain.
"""

from __future__ import annotations

from .fact_form import decode_facts
from .messages import NO_MESSAGES
from .open_turn import Ended
from .records import Closed, Head, MailReturned, Record, Restarted, Settled, TurnEnded, TurnStarted
from .session import Session

__all__ = ["LaterHead"]


class LaterHead:
    """One agent's head while its later records are applied, oldest first; None for an agent that had no record yet."""

    __slots__ = ("_head", "_is_fork", "_knows_mail", "_knows_report", "_knows_return", "session")

    def __init__(self, agent: int, head: Head | None) -> None:
        self._head = head
        self._is_fork = False
        self._knows_mail = self._knows_report = self._knows_return = True
        self.session = Session(agent)
        if head is not None:
            # One that rests and has nothing to do has reported all, and its mail begins no turn.
            is_done = not head.unfinished
            self._knows_mail = is_done and head.status == "idle"
            self._knows_report = is_done or not head.parent
            self._knows_return = is_done or head.status != "closed"
            self.session = _session_of(head)

    @property
    def last_seq(self) -> int:
        """The last record that it knows of."""
        return self.session.last_seq

    def apply(self, record: Record) -> None:
        """Apply the agent's next record.

        Raises:
            RecordError: a fact this version does not know.
        """
        session = self.session
        if record.prev and not session.last_seq:
            self._is_fork = True
        if self._is_fork:
            return
        session.begin_record(record.seq, record.at_us)
        new = decode_facts(record.facts)
        session.apply_facts(new)
        for fact in new:
            if type(fact) is Settled:
                self._knows_report = True
            elif type(fact) in (Closed, MailReturned, Restarted):
                self._knows_return = True
            elif type(fact) is TurnStarted and self._head is not None and fact.read_seq >= self._head.last_seq:
                self._knows_mail = True
        if session.messages:
            session.messages = NO_MESSAGES

    def head(self, model: str = "") -> Head | None:
        """Return the head as the whole chain gives it, but for what a session does not know; None where that is open.

        What a session does not know is as in the former head; ``model`` is for one that had none.
        """
        session, former = self.session, self._head
        if self._is_fork:
            return None
        knows_rest = self._knows_return if session.status == "closed" else self._knows_mail
        if not (session.is_unfinished or session.owes_return or (self._knows_report and knows_rest)):
            return None
        if former is None:
            return session.head(model)
        return session.head(former.model, former.children, former.descendants, former.counted_agent)


def _session_of(head: Head) -> Session:
    """Return a session that is as ``head`` says, without a conversation, mail or an open turn."""
    ended = Ended(head.turn, 0, TurnEnded(head.outcome, "", "", "")) if head.outcome is not None else None
    return Session(
        *(head.agent, head.parent, head.root, 0, head.name, head.profile, head.uuid, head.status),
        turns=head.turn,
        ended=ended,
        usage=head.usage,
        spent_nano=head.spent_nano,
        uncertain_nano=head.uncertain_nano,
        unpriced=head.unpriced,
        reserved_nano=head.reserved_nano,
        reported=(head.usage, head.spent_nano - head.unreported_nano, head.uncertain_nano, head.unpriced),
        task=head.task,
        created_us=head.created_us,
        updated_us=head.updated_us,
        last_seq=head.last_seq,
        snapshot_seq=head.snapshot_seq,
    )
