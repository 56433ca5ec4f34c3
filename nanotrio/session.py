"""One agent's durable conversation, rebuilt by applying its records in order.

Theory of operation
-------------------
A session changes in one way only: a fact is applied. While an agent runs, each fact is applied at the moment it is
decided; after a restart the same facts are applied from the store. Both give an equal session, and a test holds them
to it. Nothing here reads a clock, a file or a random number.

The conversation grows by four facts: ``TurnStarted`` and ``MailRead`` add a user message made of the mails they
consume, ``Replied`` adds the assistant's, and the last ``ToolEnded`` of a reply adds one user message with the
results in the order of the calls, whatever the order they came in.

A fork's chain goes on from another agent's, so its ``Spawned`` meets the other's session. It keeps the conversation up
to the end of the last turn, and begins all else anew.

A session that waits may be *packed*: the messages it has become one piece of bytes; and *evicted*: they are dropped.
``evicted`` says how many they were, either way. Facts apply as ever, since none of them looks at a former message; what
is said meanwhile stands in ``messages`` alone. Before the conversation is needed whole, ``unpack`` or, with what a
replay up to ``evicted_seq`` makes, ``restore`` puts them back.

Unread mails wait in ``unread``. What is told between steps (everything but prompts and texts) can be read by a
running turn; a new turn reads all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from . import records as facts
from .errors import RecordError
from .fact_form import decode_facts
from .limits import Limits
from .mail import NO_MAIL, Mail, count_letters, render_mails, task_of
from .messages import NO_MESSAGES, Message, Text, ToolCall, ToolResult, Usage
from .open_turn import NO_CALLS, Ended, OpenCall, Turn
from .packing import decode_state, encode_state, pack_messages, unpack_messages

__all__ = ["NO_RESULT", "Session"]

SNAPSHOT_RECORDS = 1_000
"""A chain gets a snapshot after this many records, once they said more than the last snapshot has bytes: so the bytes
written for snapshots stay in proportion to the chain, and a replay reads no more than a session is large."""

_RECORD_BYTES = 64
"""What a record counts for beside the texts in it."""

NO_RESULT = "no result by submit_result that fits the schema"
"""The mistake of an agent that ends with a text, or submits something, where a result of another form was asked for."""


class Session(msgspec.Struct, gc=False, omit_defaults=True):
    """An agent's state, as its facts make it. Read it freely; change it only by the ``apply`` methods."""

    agent: int
    parent: int = 0
    root: int = 0
    depth: int = 0
    name: str = ""
    profile: int = 0
    uuid: str = ""
    status: facts.Status = "pending"
    messages: list[Message] = NO_MESSAGES
    """What was said, but for the first ``evicted`` messages."""
    unread: list[Mail] = NO_MAIL
    letters: int = 0  # as ``count_letters`` has it
    turn: Turn | None = None
    turns: int = 0
    """Turns begun."""
    ended: Ended | None = None
    limits: Limits | None = None
    """Set while the agent lived; else those of its profile hold."""
    usage: Usage = Usage()
    """Own plus what ended children reported, like all the counts below."""
    spent_nano: int = 0
    uncertain_nano: int = 0
    unpriced: int = 0
    reserved_nano: int = 0
    """The open reservation of a model call in flight."""
    reported: tuple[Usage, int, int, int] = (Usage(), 0, 0, 0)
    """What the parent was told of so far: usage, spent, uncertain, unpriced."""
    owes_return: bool = False  # closed, and its unread mail has not gone back yet
    closed_seq: int = 0  # the record that closed it last, also where it was opened again
    task: str = ""
    """The beginning of the first prompt; empty only where none came, and then the agent takes no turn of its own."""
    created_us: int = 0
    updated_us: int = 0
    former_us: int = 0
    """When the record before the last was made."""
    last_seq: int = 0
    snapshot_seq: int = 0
    records: int = 0
    """Records on the chain, a fork's own."""
    snapshot_records: int = 0
    """Records that the newest snapshot covers."""
    snapshot_bytes: int = 0
    """Size of the newest snapshot."""
    grown_bytes: int = 0
    """Size of the texts in the records since then."""
    evicted: int = 0
    """How many messages, the first ones, are not in ``messages``; everything else of a session always is there."""
    evicted_seq: int = 0  # the last record when they were dropped
    packed: bytes = b""
    """These messages in one piece, where they were packed only."""

    def apply(self, record: facts.Record) -> None:
        """Apply one record of the chain, in place.

        Raises:
            RecordError: a fact this version does not know.
        """
        self.agent = record.agent
        self.begin_record(record.seq, record.at_us)
        self.apply_facts(decode_facts(record.facts))

    def begin_record(self, seq: int, at_us: int) -> None:
        """The facts that follow belong to record ``seq``."""
        self.last_seq = seq
        self.records += 1
        self.former_us = self.updated_us
        self.updated_us = at_us
        if not self.created_us:
            self.created_us = at_us

    def apply_facts(self, new: Iterable[facts.Fact]) -> None:
        """Apply facts of the record begun last."""
        apply = _APPLY
        for fact in new:
            apply[type(fact)](self, fact)

    def is_due_for_snapshot(self) -> bool:
        """Whether the chain's next record should begin with a snapshot."""
        records = self.records - self.snapshot_records
        return (
            records >= SNAPSHOT_RECORDS
            and self.grown_bytes + records * _RECORD_BYTES >= self.snapshot_bytes
            and (not self.evicted or bool(self.packed))
        )

    def snapshot(self) -> facts.Snapshot:
        """Return the fact that stands for everything before it; nothing may be evicted."""
        self.unpack()
        assert not self.evicted
        return facts.Snapshot(encode_state(self))

    @property
    def message_count(self) -> int:
        """How many messages there are, evicted ones included."""
        return self.evicted + len(self.messages)

    def pack(self) -> None:
        """Keep the messages in one piece of bytes, for as long as nobody looks at them; a no-op where some are evicted.

        They take a third of the memory then, and none that stays in use around what others hold.
        """
        if self.messages and not self.evicted:
            self.packed = pack_messages(self.messages)
            self.evicted = len(self.messages)
            self.evicted_seq = self.last_seq
            self.messages = NO_MESSAGES

    def unpack(self) -> None:
        """Undo ``pack``; a no-op where nothing is packed."""
        if self.packed:
            self.restore(unpack_messages(self.packed))

    def evict(self) -> None:
        """Drop the messages, packed or not; call it only where the last record is durable."""
        if self.messages:
            self.evicted += len(self.messages)
            self.evicted_seq = self.last_seq
            self.messages = NO_MESSAGES
        self.packed = b""

    def restore(self, messages: list[Message]) -> None:
        """Put back what was dropped: the messages as a replay of the chain up to ``evicted_seq`` has them.

        Raises:
            RecordError: these are not as many as were dropped.
        """
        if len(messages) != self.evicted:
            raise RecordError(
                f"{self.name} had {self.evicted} messages at record {self.evicted_seq}, and the store has "
                f"{len(messages)}; nanotrio store check says what is damaged"
            )
        self.messages = [*messages, *self.messages]
        self.evicted = self.evicted_seq = 0
        self.packed = b""

    def fork(self, agent: int) -> Session:
        """Return a fork as it is before its first record; call it only where a turn has ended."""
        assert self.ended is not None
        last_seq = self.ended.seq
        return Session(
            agent, name=self.name, messages=self.messages, ended=self.ended, task=self.task, last_seq=last_seq
        )

    @property
    def is_unfinished(self) -> bool:
        """Whether there is something left to do: an open or unsettled turn, or unread mail that begins one."""
        return self.status != "closed" and (self.status != "idle" or self.has_news)

    @property
    def owes_report(self) -> bool:
        """Whether the parent was not told of all that was used; so it is where a crash cut off an agent's end."""
        used = (self.usage, self.spent_nano, self.uncertain_nano, self.unpriced)
        return self.parent != 0 and self.reported != used

    @property
    def has_news(self) -> bool:
        """Whether unread mail begins a turn where none is open."""
        return bool(self.unread) and any(mail.begins_turn for mail in self.unread)

    def head(self, model: str = "", children: int = 0, descendants: int = 0, counted_agent: int = 0) -> facts.Head:
        """Return the head as it stands, with what a session does not know."""
        _, spent, uncertain, _ = self.reported
        return facts.Head(  # by position, which takes a quarter of the time
            self.agent,
            self.parent,
            self.root,
            self.name,
            self.status,
            self.is_unfinished or self.owes_report or self.owes_return,
            self.last_seq,
            self.snapshot_seq,
            self.turns,
            self.ended.fact.status if self.ended else None,
            self.usage,
            self.spent_nano,
            self.uncertain_nano,
            self.reserved_nano,
            self.spent_nano + self.uncertain_nano - spent - uncertain,
            self.unpriced,
            self.created_us,
            self.updated_us,
            model,
            self.uuid,
            self.task,
            self.profile,
            children,
            descendants,
            counted_agent,
        )

    def report(self) -> tuple[Usage, int, int, int]:
        """Return what the parent has not been told of yet: usage, spent, uncertain, unpriced."""
        usage, spent, uncertain, unpriced = self.reported
        return self.usage - usage, self.spent_nano - spent, self.uncertain_nano - uncertain, self.unpriced - unpriced


def _spawned(session: Session, fact: facts.Spawned) -> None:
    if session.name:
        _begin_fork(session)
    session.parent, session.root, session.depth = fact.parent, fact.root or session.agent, fact.depth
    session.name, session.profile, session.uuid = fact.name, fact.profile, fact.uuid


def _begin_fork(session: Session) -> None:
    """Keep what the fork has of its source, which may have gone on, the record that ended its turn included."""
    ended = session.ended
    if ended is None:
        raise RecordError(f"record {session.last_seq} forks a session of which no turn had ended")
    kept = Session(
        *(session.agent, 0, 0, 0, "", 0, "", "idle", session.messages[: ended.messages]),
        turns=ended.turn,
        ended=ended,
        task=session.task,
        created_us=session.updated_us,
        updated_us=session.updated_us,
        last_seq=session.last_seq,
        snapshot_seq=ended.snapshot_seq,
        records=1,
    )
    for field in Session.__struct_fields__:
        setattr(session, field, getattr(kept, field))


def _mail_arrived(session: Session, fact: facts.MailArrived) -> None:
    if not session.task and fact.kind == "prompt":
        session.task = task_of(fact.text)
    _put(session, Mail(session.last_seq, fact.kind, fact.sender, fact.sender_name, fact.text))


def _put(session: Session, mail: Mail) -> None:
    session.grown_bytes += len(mail.text)
    session.letters += mail.kind != "child"
    if not session.unread:
        session.unread = []
    session.unread.append(mail)


def _child_ended(session: Session, fact: facts.ChildEnded) -> None:
    session.usage += fact.usage
    session.spent_nano += fact.cost_nano
    session.uncertain_nano += fact.uncertain_nano
    session.unpriced += fact.unpriced
    if session.status != "closed" and not fact.is_told:
        text = f"{fact.status}: {fact.result or fact.last_text}"
        if fact.status != "completed":
            text = f"{fact.status}: {fact.reason}" + (f"; its last text: {fact.last_text}" if fact.last_text else "")
        _put(session, Mail(session.last_seq, "child", fact.child, fact.name, text))


def _take(session: Session, wanted: Callable[[Mail], bool]) -> list[Mail]:
    taken = [mail for mail in session.unread if wanted(mail)]
    session.letters -= count_letters(taken)
    session.unread = [mail for mail in session.unread if not wanted(mail)] or NO_MAIL
    return taken


def _say(session: Session, message: Message) -> None:
    if not session.messages:
        session.messages = []
    session.messages.append(message)


def _tell(session: Session, mails: list[Mail]) -> None:
    if text := render_mails(mails):
        _say(session, Message("user", (Text(text),)))


def _turn_started(session: Session, fact: facts.TurnStarted) -> None:
    session.turn = Turn(number=fact.turn, since_us=session.updated_us)
    session.turns = fact.turn
    session.status = "running"
    unread = session.unread
    if not unread or unread[-1].seq <= fact.read_seq:
        session.unread, session.letters = NO_MAIL, 0
        _tell(session, unread)
    else:
        _tell(session, _take(session, lambda mail: mail.seq <= fact.read_seq))


def _mail_read(session: Session, fact: facts.MailRead) -> None:
    _tell(session, _take(session, lambda mail: mail.seq <= fact.read_seq and mail.is_told_between_steps))


def _mail_taken(session: Session, fact: facts.MailTaken) -> None:
    seqs = frozenset(fact.seqs)
    _take(session, lambda mail: mail.kind == "child" and mail.seq in seqs)


def _mail_returned(session: Session, fact: facts.MailReturned) -> None:
    _take(session, lambda mail: mail.seq <= fact.read_seq)
    session.owes_return = False


def _reserved(session: Session, fact: facts.Reserved) -> None:
    session.reserved_nano = fact.amount_nano


def _count(session: Session, usage: Usage, cost_nano: int | None) -> None:
    session.reserved_nano = 0
    session.usage += usage
    if cost_nano is None:
        session.unpriced += 1
    else:
        session.spent_nano += cost_nano


def _replied(session: Session, fact: facts.Replied) -> None:
    _count(session, fact.usage, fact.cost_nano)
    turn = session.turn
    if turn is None:
        return
    turn.steps += 1
    if turn.failed_attempts:
        turn.failed_attempts, turn.failure_kind, turn.failure = 0, "", ""
    turn.stop = fact.stop
    parts = fact.parts
    if parts:
        _say(session, Message("assistant", parts, fact.model))
    calls = [OpenCall(part) for part in parts if type(part) is ToolCall]
    turn.calls = calls or NO_CALLS
    turn.tool_calls += len(calls)
    if len(calls) < len(parts) and (text := "".join([part.text for part in parts if type(part) is Text])):
        turn.last_text = text
        session.grown_bytes += len(text)
    for call in calls:
        session.grown_bytes += len(call.call.arguments)


def _attempt_failed(session: Session, fact: facts.AttemptFailed) -> None:
    if fact.cost_nano is None and not any(msgspec.structs.astuple(fact.usage)):
        session.reserved_nano = 0
    else:
        _count(session, fact.usage, fact.cost_nano)
    session.uncertain_nano += fact.uncertain_nano
    if session.turn is not None:
        session.turn.failed_attempts += 1
        session.turn.failure_kind, session.turn.failure = fact.kind, fact.message


def _tool_intended(session: Session, fact: facts.ToolIntended) -> None:
    for call in session.turn.calls if session.turn else ():
        if call.call.id == fact.call_id:
            call.intended, call.child = True, fact.child


def _tool_ended(session: Session, fact: facts.ToolEnded) -> None:
    turn = session.turn
    if turn is None:
        return
    session.grown_bytes += len(fact.content)
    done = True
    for call in turn.calls:
        if call.result is None:
            if call.call.id == fact.call_id:
                call.result = ToolResult(fact.call_id, fact.content, fact.is_error)
            else:
                done = False
    turn.count_mistake(fact.mistake)
    if done and turn.calls:
        results = tuple([call.result for call in turn.calls if call.result is not None])
        _say(session, Message("user", results))
        turn.calls = NO_CALLS
        turn.stop = ""


def _submitted(session: Session, fact: facts.Submitted) -> None:
    if session.turn is not None:
        session.turn.submitted = fact.result


def _unfit(session: Session, fact: facts.Unfit) -> None:
    if session.turn is not None:
        _say(session, Message("user", (Text(fact.text),)))
        session.turn.stop = ""
        session.turn.count_mistake(NO_RESULT)


def _limits_set(session: Session, fact: facts.LimitsSet) -> None:
    session.limits = fact.limits


def _turn_ended(session: Session, fact: facts.TurnEnded) -> None:
    turn = session.turn
    place = (session.last_seq, session.message_count, session.snapshot_seq)
    session.ended = Ended(session.turns, turn.steps if turn else 0, fact, *place)
    session.turn = None
    session.status = "settling"


def _settled(session: Session, _: facts.Settled) -> None:
    if session.status != "closed":
        session.status = "idle"
    session.reported = (session.usage, session.spent_nano, session.uncertain_nano, session.unpriced)


def _restarted(session: Session, _: facts.Restarted) -> None:
    session.uncertain_nano += session.reserved_nano
    session.reserved_nano = 0
    if session.status == "closed":
        session.status, session.owes_return = "idle", False
    if (turn := session.turn) is not None:
        turn.elapsed_us += max(0, session.former_us - turn.since_us)
        turn.since_us = session.updated_us


def _closed(session: Session, fact: facts.Closed) -> None:
    session.status, session.owes_return, session.closed_seq = "closed", fact.owes_return, session.last_seq


def _snapshot(session: Session, fact: facts.Snapshot) -> None:
    if not session.name:  # replay begins here: what came before was not applied
        state = decode_state(fact.state, Session)
        for field in Session.__struct_fields__:
            setattr(session, field, getattr(state, field))
        session.letters = count_letters(session.unread)  # which a former version did not write down
    session.snapshot_seq, session.snapshot_records = session.last_seq, session.records
    session.snapshot_bytes, session.grown_bytes = len(fact.state), 0


_APPLY: dict[type, Callable[[Session, Any], None]] = {
    facts.Spawned: _spawned,
    facts.MailArrived: _mail_arrived,
    facts.ChildEnded: _child_ended,
    facts.TurnStarted: _turn_started,
    facts.MailRead: _mail_read,
    facts.MailTaken: _mail_taken,
    facts.MailReturned: _mail_returned,
    facts.Reserved: _reserved,
    facts.Replied: _replied,
    facts.AttemptFailed: _attempt_failed,
    facts.ToolIntended: _tool_intended,
    facts.ToolEnded: _tool_ended,
    facts.Submitted: _submitted,
    facts.Unfit: _unfit,
    facts.LimitsSet: _limits_set,
    facts.TurnEnded: _turn_ended,
    facts.Settled: _settled,
    facts.Restarted: _restarted,
    facts.Closed: _closed,
    facts.Snapshot: _snapshot,
    facts.Content: lambda _session, _fact: None,
}
