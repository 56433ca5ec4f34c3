"""One model call of an agent: encode, reserve, ask, settle.

The attempt itself is awaited in the agent's own task, with no frame of this module below it, since thousands of agents
spend their time there. The node has what was reserved for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Awaitable

import trio

from .. import crash
from ..budget import Ledger
from ..errors import BudgetError, ModelError
from ..limits import usd, usd_text
from ..messages import Message, Usage, clean_parts, clean_text
from ..models import Price, Reply, delay_seconds
from ..records import Replied
from ..turn import Admitted, Failed, ModelReplied, Retry, Stop
from .events import AgentWaiting, AttemptRetried, MessageReplied
from .live_text import watched_attempt
from .node import Node
from .pump import Parked
from .result import with_schema
from .runtime import Runtime
from .warnings import warn

__all__ = ["admit_next", "ask_model", "attempt_cut_off", "attempt_failed", "back_off", "take_reply"]

_BYTES_PER_TOKEN = 3
"""A cautious guess of how many bytes of a request make a token; real text has three to five."""

_FEW_MESSAGES = 16
_FEW_BYTES = 8_192
"""So much is encoded anew for each request: to keep the bytes would double what a waiting agent takes."""

_FEW_LIVE = 8_192
"""While no more agents have a task their short conversations stay as they are: to pack them would save a MB or two."""


def ask_model(runtime: Runtime, node: Node) -> Awaitable[Reply | None]:
    """Begin one attempt of a model call; return what is to be awaited for its reply.

    While ``node.asked_bytes`` is not 0 an attempt is in flight, and how the await ended is to be told at once: by
    ``take_reply``, ``attempt_failed`` or ``attempt_cut_off``. Where it is 0 the request was not sent.
    """
    admitted = _admit_at_once(runtime, node)
    if admitted is None or node.ledger.is_capped:
        return _ask_later(runtime, node, admitted)
    runtime.append()
    return _send(runtime, node, *admitted)


async def _ask_later(runtime: Runtime, node: Node, admitted: tuple[bytes, int] | None) -> Reply | None:
    """Do so where something has to be waited for first."""
    if admitted is None:
        runtime.append()
        admitted = await _admit(runtime, node)
    if admitted is None:
        return None
    body, amount = admitted
    node.asked_bytes, node.asked_nano = len(body), amount
    is_capped = node.ledger.is_capped
    if is_capped:
        runtime.absorb(node, Admitted(amount))
    seq = runtime.append()
    if is_capped and runtime.settings.durability != "async":
        await runtime.durable(seq)
    attempt = _send(runtime, node, body, amount)
    del body, admitted  # only the attempt holds the request, for as long as it needs it
    return await attempt


def _send(runtime: Runtime, node: Node, body: bytes, amount: int) -> Awaitable[Reply]:
    node.asked_bytes, node.asked_nano = len(body), amount
    if crash.here is not None:
        crash.here("before-model-call", node.id)
    if runtime.watchers.count and runtime.watchers.is_watched(node):
        attempt = watched_attempt(runtime, node, body)
    else:
        attempt = node.model.attempt(body, None, idle_seconds=node.limits.idle_seconds)
    if node.encoded is None and runtime.live > _FEW_LIVE:
        node.session.pack()
    return attempt


def attempt_cut_off(runtime: Runtime, node: Node) -> None:
    """The agent was cancelled while its attempt was in flight: record what it may have cost as uncertain.

    Where the subtree was interrupted nothing is written.
    """
    amount = node.asked_nano
    node.asked_bytes = 0
    warn(runtime, node, node.ledger.settle(amount, amount))
    if node.sealed != "interrupted":
        runtime.absorb(node, Failed("cancelled", "the call was cut off", uncertain_nano=amount))
        runtime.append()
    admit_next(runtime, node)


def _admit_at_once(runtime: Runtime, node: Node) -> tuple[bytes, int] | None:
    """What ``_admit`` does where nothing has to be waited for, as nearly always; None where something has."""
    model, session = node.model, node.session
    if model.name in runtime.gates:
        return None
    session.unpack()
    if session.evicted:
        return None
    max_tokens = node.limits.max_output_tokens
    body = _encode(runtime, node, max_tokens)
    if model.price is None:
        return None if node.ledger.is_capped else (body, 0)
    amount = _worst_case(node, body, model.price, max_tokens)
    if node.ledger.refusing(amount) is not None:
        return None
    node.ledger.reserve(amount)
    return body, amount


async def _admit(runtime: Runtime, node: Node) -> tuple[bytes, int] | None:
    """Encode the request and reserve what it may cost; None where it is not to be sent now."""
    await _wait_for_gate(runtime, node)
    max_tokens = node.limits.max_output_tokens
    body = await _request(runtime, node, max_tokens)
    price = node.model.price
    amount = 0
    if price is None:
        if (tightest := node.ledger.tightest()) is not None:  # set while this agent was not in memory
            runtime.absorb(node, Stop("budget_exceeded", _unpriced(node, tightest)))
            return None
    else:
        amount = _worst_case(node, body, price, max_tokens)
        try:
            amount, lowered = await _reserve(runtime, node, amount, price, max_tokens)
        except BudgetError as error:
            runtime.absorb(node, Stop("budget_exceeded", str(error)))
            return None
        if lowered != max_tokens:
            try:
                body = await _request(runtime, node, lowered)
            except BaseException:  # its transcript may have to be read first
                node.ledger.settle(amount, 0)
                admit_next(runtime, node)
                raise
        gate = runtime.gates.get(node.model.name)
        if gate is not None and gate.is_closed(trio.current_time()):  # closed while this agent waited for money
            node.ledger.settle(amount, 0)
            admit_next(runtime, node)
            return None
    return body, amount


def take_reply(runtime: Runtime, node: Node, reply: Reply) -> None:
    """Settle the reservation and record the reply."""
    if not _is_counted(reply.usage):
        told = f"{node.model.name} gave {reply.usage!r} as its usage; each must be a whole number, 0 or more"
        attempt_failed(runtime, node, ModelError(told, kind="rejected"))
        return
    body_bytes, amount = node.asked_bytes, node.asked_nano
    node.asked_bytes = 0
    usage = reply.usage
    price = node.model.price
    cost = price.cost_nano(usage) if price else None
    if crash.here is not None:
        crash.here("after-model-reply", node.id)
    if passed := node.ledger.settle(amount, cost or 0):
        warn(runtime, node, passed)
    parts = runtime.redactor.parts(clean_parts(reply.parts))
    runtime.absorb(node, ModelReplied(Replied(node.model.name, parts, reply.stop, usage, cost)))
    if crash.here is not None:
        crash.here("after-reply-record", node.id)
    gate = runtime.gates.get(node.model.name)
    if gate is not None:
        gate.succeeded()
    node.body_bytes, node.input_tokens = body_bytes, usage.input + usage.cache_read + usage.cache_write
    admit_next(runtime, node)
    if runtime.watchers.count:
        message = Message("assistant", parts, node.model.name)
        runtime.emit(node, MessageReplied(node.id, node.name, message, usage, cost))


def _is_counted(usage: Usage) -> bool:
    put, got, read, written = usage.input, usage.output, usage.cache_read, usage.cache_write
    if type(put) is int and type(got) is int and type(read) is int and type(written) is int:
        return put >= 0 and got >= 0 and read >= 0 and written >= 0
    return False


def attempt_failed(runtime: Runtime, node: Node, error: BaseException) -> None:
    """Settle the reservation and record the failure; a model that breaks fails as one that is refused."""
    amount = node.asked_nano
    node.asked_bytes = 0
    if not isinstance(error, ModelError):
        error = ModelError(f"{node.model.name} broke: {type(error).__name__}: {error}", kind="rejected")
    price = node.model.price
    usage = error.usage if isinstance(error.usage, Usage) else Usage()
    cost = price.cost_nano(usage) if price else None
    warn(runtime, node, node.ledger.settle(amount, cost or 0))
    node.retry_after_seconds = error.retry_after_seconds
    if error.kind == "rate_limited":
        runtime.gate(node).refused(trio.current_time(), error.retry_after_seconds)
    runtime.absorb(node, Failed(error.kind, runtime.redactor.text(clean_text(str(error))), usage, cost))
    admit_next(runtime, node)


async def back_off(runtime: Runtime, node: Node, retry: Retry) -> bool:
    """Wait as the failure asks, without a slot; return False where it is not worth another try."""
    seed = node.id * 1_000 + (node.session.turn.steps if node.session.turn else 0)
    delay = delay_seconds(retry.kind, retry.attempt, node.retry_after_seconds, seed)  # type: ignore[arg-type]
    if delay == math.inf:
        runtime.absorb(node, Stop("failed", retry.message))
        return False
    if runtime.watchers.count:
        runtime.emit(node, AttemptRetried(node.id, node.name, retry.message, delay))
    await _sleep_without_slot(runtime, node, delay, "another attempt")
    return True


async def _wait_for_gate(runtime: Runtime, node: Node) -> None:
    gate = runtime.gates.get(node.model.name)
    while gate is not None and (delay := gate.wait_seconds(trio.current_time(), node.id)) > 0:
        await _sleep_without_slot(runtime, node, delay, "a rate limit")


async def _sleep_without_slot(runtime: Runtime, node: Node, seconds: float, reason: str) -> None:
    runtime.append()
    runtime.slots.release(node)
    _waiting(runtime, node, reason)
    try:
        await trio.sleep(seconds)
        await runtime.slots.acquire(node)
    finally:
        node.waiting_for = ""


def _waiting(runtime: Runtime, node: Node, reason: str) -> None:
    node.waiting_for = reason
    if runtime.watchers.count:
        runtime.emit(node, AgentWaiting(node.id, node.name, reason))


async def _request(runtime: Runtime, node: Node, max_tokens: int) -> bytes:
    """Encode the request, once the transcript is whole again: any wait before may have been a long one."""
    node.session.unpack()
    if node.session.evicted:
        await runtime.transcripts.restore(node)
    return _encode(runtime, node, max_tokens)


def _encode(runtime: Runtime, node: Node, max_tokens: int) -> bytes:
    codec = node.model.codec
    encode_message = codec.encode_message
    name = node.model.name
    head = node.heads.get(max_tokens) or _head(runtime, node, max_tokens)
    encoded = node.encoded
    messages = node.session.messages
    if encoded is None:
        encoded = [encode_message(message, name) for message in messages]
    else:
        encoded += [encode_message(message, name) for message in messages[len(encoded) :]]
    body = codec.join(head, encoded)
    is_long = len(messages) > _FEW_MESSAGES or len(body) - len(head) > _FEW_BYTES
    node.encoded = encoded if is_long else None
    return body


def _head(runtime: Runtime, node: Node, max_tokens: int) -> bytes:
    """Return the request up to its messages; one with lowered ``max_tokens`` is not kept, since no two are alike."""
    name = node.model.name
    schema = node.profile.result_schema
    key = (name, node.profile.system, tuple(node.tools), max_tokens, schema)
    head = runtime.heads.get(key)
    if head is None:
        specs = [with_schema(tool.spec, schema) for tool in node.tools.values()]
        head = node.model.codec.encode_head(name, runtime.systems[node.profile.system], specs, max_tokens)
    if max_tokens == node.limits.max_output_tokens:
        runtime.heads[key] = node.heads[max_tokens] = head
    return head


def _worst_case(node: Node, body: bytes, price: Price, max_tokens: int) -> int:
    size_bytes = len(body)
    if node.input_tokens and size_bytes >= node.body_bytes:
        tokens = node.input_tokens + (size_bytes - node.body_bytes) // _BYTES_PER_TOKEN + 1
    else:
        tokens = size_bytes // _BYTES_PER_TOKEN + 1
    return tokens * max(price.input, price.cache_write) + max_tokens * price.output


async def _reserve(runtime: Runtime, node: Node, amount: int, price: Price, max_tokens: int) -> tuple[int, int]:
    """Reserve along the lineage; return the amount and ``max_tokens``, which may have been lowered.

    What does not fit waits while another agent below the capping ancestor holds a reservation.

    Raises:
        BudgetError: it will not fit; the error names the ancestor.
    """
    ledger = node.ledger
    waited_for: Ledger | None = None
    try:
        while (refusing := ledger.refusing(amount)) is not None:
            if refusing.reserved <= 0:
                least = node.limits.min_output_tokens
                room = refusing.room or 0
                affordable = max_tokens - math.ceil((amount - room) / price.output) if price.output else 0
                if affordable < least or affordable >= max_tokens:
                    raise _refusal(node, refusing, amount)
                amount -= (max_tokens - affordable) * price.output
                max_tokens = affordable
                continue
            if waited_for is not None and waited_for is not refusing:
                _admit_from(runtime, waited_for)
            waited_for = refusing
            await _wait_for_room(runtime, node, refusing)
        ledger.reserve(amount)
    finally:
        if waited_for is not None:
            _admit_from(runtime, waited_for)
    return amount, max_tokens


def _refusal(node: Node, refusing: Ledger, amount: int) -> BudgetError:
    cap = refusing.cap or 0
    left = usd_text(max(cap - refusing.settled, 0))
    return BudgetError(
        f"the budget of {refusing.owner} ({usd_text(cap)}) has {left} left, and the "
        f"next call of {node.name} may cost {usd_text(amount)}",
        bound="budget_usd",
        value=usd(cap),
        holder=refusing.owner,
    )


def _unpriced(node: Node, capped: Ledger) -> str:
    return (
        f"the price of {node.model.name} is unknown, so the budget of {capped.owner} ({usd_text(capped.cap or 0)}) "
        f"cannot be kept by {node.name}; use a model with a price, or no budget"
    )


async def _wait_for_room(runtime: Runtime, node: Node, refusing: Ledger) -> None:
    runtime.append()
    runtime.slots.release(node)
    _waiting(runtime, node, f"the budget of {refusing.owner}")
    parked = Parked()
    runtime.budget_queues.setdefault(refusing, deque()).append(parked)
    try:
        await parked.wait()
        await runtime.slots.acquire(node)
    except BaseException:
        _admit_from(runtime, refusing)
        raise
    finally:
        node.waiting_for = ""


def admit_next(runtime: Runtime, node: Node) -> None:
    """A reservation of ``node`` was settled: let the next who waits along its lineage look again."""
    if runtime.budget_queues:
        for ledger in node.ledger.lineage():
            _admit_from(runtime, ledger)


def _admit_from(runtime: Runtime, ledger: Ledger) -> None:
    """Let one who waits for ``ledger`` look again; that one lets the next, so none is forgotten."""
    queue = runtime.budget_queues.get(ledger)
    while queue:
        parked = queue.popleft()
        if parked.task is not None:
            runtime.pump.post(parked)
            break
    if queue is not None and not queue:
        del runtime.budget_queues[ledger]
