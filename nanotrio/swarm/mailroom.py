"""Mail, and waiting for others.

Every mail has one fate: a turn consumes it, or it goes back as undeliverable. It lies on its recipient's chain from
the moment it was sent, so nothing here has to be remembered across a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import trio

from .. import crash
from ..errors import ClosedError, LimitError
from ..limits import Limits
from ..messages import clean_text
from ..records import Closed, MailArrived, MailKind, MailReturned
from .node import Node
from .pump import Parked, Pump
from .runtime import Runtime

__all__ = ["Waiter", "close_mailbox", "deliver", "return_unread", "senders_of", "wait_for", "write_mail"]

_MAX_CHARACTER_BYTES = 4
"""Of UTF-8."""


class Waiter:
    """Somebody who waits until some or all of a set of agents are finished."""

    __slots__ = ("_parked", "_pump", "left")

    def __init__(self, pump: Pump, left: int) -> None:
        self._pump = pump
        self._parked: Parked | None = None
        self.left = left

    def notify(self) -> None:
        """One of them is finished."""
        self.left -= 1
        if self.left <= 0 and self._parked is not None:
            self._pump.post(self._parked)
            self._parked = None

    async def wait(self) -> None:
        """Sleep until it is done; returns at once where it is. Checkpoints."""
        if self.left <= 0:
            await trio.lowlevel.checkpoint()
            return
        self._parked = Parked()
        await self._parked.wait()


async def wait_for(
    runtime: Runtime,
    nodes: Sequence[Node],
    mode: Literal["any", "all"],
    timeout_seconds: float | None,
    rows: Sequence[int] = (),
) -> None:
    """Wait until any or all of ``nodes``, and of pending agents that are ``rows``, are finished, or the time is over.

    Checkpoints.
    """
    open_nodes = [node for node in nodes if node.is_counted]
    left = len(open_nodes) + len(rows)
    if not left or (mode == "any" and len(open_nodes) < len(nodes)):
        await trio.lowlevel.checkpoint()
        return
    waiter = Waiter(runtime.pump, 1 if mode == "any" else left)
    for node in open_nodes:
        if node.waiters is None:
            node.waiters = []
        node.waiters.append(waiter)
    for row in rows:
        runtime.residence.waiters.setdefault(row, []).append(waiter)
    try:
        if timeout_seconds is None:
            await waiter.wait()
        else:
            with trio.move_on_after(timeout_seconds):
                await waiter.wait()
    finally:
        for node in open_nodes:
            if node.waiters and waiter in node.waiters:
                node.waiters.remove(waiter)
        for row in rows:
            runtime.residence.forget_waiter(row, waiter)


def deliver(runtime: Runtime, to: Node, kind: MailKind, sender: Node | None, text: str) -> int:
    """Put a mail on the recipient's chain, within the open group, and wake it; return the mail's id.

    Raises:
        ClosedError: the recipient takes no more mail.
        LimitError: its mailbox is full, or the text is too long.
    """
    session = to.session
    if session.status == "closed" or to.sealed:
        raise ClosedError(f"{to.name} is closed and takes no mail; resume it first, or write to another")
    if not session.task and kind != "prompt":
        raise ClosedError(f"{to.name} only holds its children and reads no mail; write to another")
    _put(runtime, to, write_mail(runtime, to.name, to.limits, session.letters, kind, sender, text))
    return session.last_seq


def _put(runtime: Runtime, to: Node, mail: MailArrived) -> None:
    runtime.record(to, (mail,))
    if crash.here is not None:
        crash.here("after-mail", to.id)
    runtime.wake(to)


def write_mail(
    runtime: Runtime, name: str, limits: Limits, letters: int, kind: MailKind, sender: Node | None, text: str
) -> MailArrived:
    """Return the mail to an agent, as it is recorded, where ``letters`` wait for it already.

    Raises:
        LimitError: as ``deliver``.
    """
    if letters >= limits.max_mailbox:
        raise LimitError(
            f"max_mailbox of {name} is reached: {limits.max_mailbox} mails wait unread; let it read them first",
            bound="max_mailbox",
            value=limits.max_mailbox,
            holder=name,
        )
    if len(text) > limits.max_message_bytes or len(text.encode(errors="replace")) > limits.max_message_bytes:
        raise LimitError(
            f"max_message_bytes of {name} is {limits.max_message_bytes}, and the text is longer; "
            "put it into a file and send the path",
            bound="max_message_bytes",
            value=limits.max_message_bytes,
            holder=name,
        )
    text = runtime.redactor.text(clean_text(text))
    return MailArrived(kind, sender.id if sender else 0, text, sender.name if sender else "")


def close_mailbox(runtime: Runtime, node: Node, reason: str) -> None:
    """Record that the agent takes no more mail, and give back what it has not read.

    Where that has to wait for a sender the record says so, and what is unread stays so: its return and the senders'
    notices go in one group, or a crash between them would lose the notices.
    """
    is_done = return_unread(runtime, node)
    runtime.record(node, (Closed(reason, not is_done),))
    if not is_done:
        runtime.residence.return_later(node)


def senders_of(node: Node) -> list[int]:
    """Return the agents that wrote what ``node`` has not read."""
    return list(dict.fromkeys([mail.sender for mail in node.session.unread if mail.goes_back]))


def return_unread(runtime: Runtime, node: Node, *, is_loaded: bool = False) -> bool:
    """Give what a closing agent has not read back to those who sent it, where they still take mail.

    Each gets one notice, in a full mailbox too: nobody would tell it otherwise, and it gets no more of them than there
    are agents that it wrote to. Who ended the agent itself is not written to. Returns False, and records nothing, where
    a sender is not in memory, unless all of them were loaded, or is interrupted.
    """
    if not node.session.unread:
        return True
    senders = {agent: runtime.residence.here(agent) for agent in senders_of(node)}
    for sender in senders.values():
        if (sender is None and not is_loaded) or (sender is not None and sender.sealed == "interrupted"):
            return False
    unread = [mail for mail in node.session.unread if mail.goes_back]
    runtime.record(node, (MailReturned(node.session.last_seq),))
    for agent, sender in senders.items():
        if sender is None or sender.sealed or sender.session.status == "closed":
            continue
        if any(each.is_told and each.parent is sender for each in node.lineage()):
            continue
        texts = [mail.text for mail in unread if mail.sender == agent]
        what = "message" if len(texts) == 1 else f"{len(texts)} messages"
        text, most = "\n".join(texts), sender.limits.max_message_bytes // _MAX_CHARACTER_BYTES
        text = text if len(text) <= most else f"{text[:most]}..."
        _put(runtime, sender, MailArrived("returned", 0, f"{node.name} closed without reading your {what}: {text}"))
    return True


def notify(waiters: Iterable[Waiter]) -> None:
    """Tell everyone who waits for an agent that it is finished."""
    for waiter in waiters:
        waiter.notify()
