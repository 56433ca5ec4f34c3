"""The tasks of an agent: its own work, from turn to turn, and the end of it.

Theory of operation
-------------------
An agent has up to two tasks, both in its parent's nursery, and for most of its life none::

    nursery of the parent's children
    ├── own work, in node.scope      there while the agent has something to do
    └── bare task                    there while a task of a child is
        └── nursery of the children

``run_agent`` is the own work. It goes round ``turn.advance`` until the state asks for nothing more. If no descendant is
unfinished the agent then *settles*: the fact is written and the parent is told. Else the task just ends, and with it
all that the agent holds but its transcript; news (mail, or a child's end) queues the agent for a slot again, ahead of
new ones, and a task of the same kind takes it up. Ends of children that come while others still run are gathered for a
moment first, so that many at once cost one turn. Everything from the last look at the mail to the end of the task
happens without an await, so mail that comes a moment later finds no task and starts one.

The nursery of the children is no part of the own work: cancelling that, by a deadline, a stop, or the end of the
subtree, never reaches a child but through the child's own scope. ``Runtime`` opens it, from the root down, when a first
task is to be started in it, and lets go of it with the last.

What the loop does between two awaits is a plain function, ``_next_work``, which returns what is to be awaited next. So
a waiting agent keeps few frames: this task, the model call, and what that waits in.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, assert_never

import trio

from .. import crash
from ..errors import ToolError
from ..messages import Text, clean_text
from ..models import Reply
from ..records import MailTaken, OutcomeStatus, TurnStarted
from ..turn import AskModel, EndTurn, Refuse, Retry, RunTools, Stop, advance
from .calls import ask_model, attempt_cut_off, attempt_failed, back_off, take_reply
from .dispatch import run_tools
from .ending import end_children, names_of_unfinished
from .events import TurnBegan
from .node import Node
from .result import result_of_text
from .runtime import Runtime
from .settling import end_sealed_work, has_ends_to_gather, rest, settle, tell_stopped

_log = logging.getLogger("nanotrio")

__all__ = ["run_agent"]


@trio.lowlevel.enable_ki_protection
async def run_agent(runtime: Runtime, node: Node) -> None:
    """Do the agent's own work until there is none left, or its subtree is sealed."""
    try:
        runtime.deadlines.start_turn(node)
        while _goes_on(node):
            with trio.CancelScope() as scope:
                node.scope = scope
                while True:
                    try:
                        while (work := _next_work(runtime, node)) is not None:
                            reply = await work
                            if node.asked_bytes:
                                try:
                                    if not runtime.pump.take_turn():
                                        await runtime.pump.turn()
                                finally:  # paid is paid: a cancel that comes between does not lose the reply
                                    take_reply(runtime, node, reply)
                                del reply
                    except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - it harms nobody else
                        _end_broken(runtime, node, error)
                    except BaseException as error:
                        if node.asked_bytes:
                            attempt_cut_off(runtime, node)
                        if isinstance(error, BaseExceptionGroup):
                            # The own cancel is raised anew, without what cleaning up raised.
                            await trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC102, ASYNC120
                        raise
                    else:
                        return
                    if runtime.journal.failed is not None:
                        await trio.sleep_forever()  # nothing can be written any more, and the swarm is being ended
            node.scope = None
            runtime.append()
            if _goes_on(node) and node.stop is not None:
                await _stop(runtime, node, *node.stop)
        end_sealed_work(runtime, node)
    finally:
        runtime.task_ended(node)


def _goes_on(node: Node) -> bool:
    """Whether the agent was not sealed; a function, since it changes behind every await."""
    return node.sealed is None


async def _stop(runtime: Runtime, node: Node, status: OutcomeStatus, reason: str) -> None:
    """End the open turn, and everything below, as somebody asked; the agent goes on."""
    node.stop = None
    survivors = names_of_unfinished(node)
    if node.session.turn is not None:
        runtime.absorb(node, Stop(status, reason, survivors=survivors))
        runtime.append()
    await end_children(runtime, node, f"{node.name} was stopped: {reason}")
    tell_stopped(node)


def _end_broken(runtime: Runtime, node: Node, error: BaseException) -> None:
    """Record what a model raised, whose failure is a value, or what broke unforeseen, which ends the turn."""
    if node.asked_bytes:
        attempt_failed(runtime, node, error)
        return
    if runtime.journal.failed is not None and isinstance(error, Exception):
        return
    if node.session.turn is None or not isinstance(error, Exception):
        raise error
    _log.error("the turn of %s broke", node.name, exc_info=error)
    reason = runtime.redactor.text(clean_text(f"nanotrio broke: {type(error).__name__}: {error}"))
    runtime.absorb(node, Stop("failed", reason))


def _next_work(runtime: Runtime, node: Node) -> Awaitable[Any] | None:
    """Go on as far as it goes without an await; return what to await then, None where the task is to end."""
    session = node.session
    journal = runtime.journal
    is_sync = runtime.settings.durability == "sync"
    if not is_sync and (journal.is_full or journal.failed is not None):
        runtime.append()
        return runtime.room()
    while True:
        if not node.has_slot and (session.turn is not None or session.unread):
            runtime.append()
            return _take_slot(runtime, node)
        if is_sync and (seq := runtime.append()) > journal.durable_seq:
            return runtime.durable(seq)
        decision = advance(session, node.limits)
        if decision.facts:
            if crash.here is not None:
                crash.here("before-read", node.id)
            runtime.record(node, decision.facts)
            if crash.here is not None:
                crash.here("after-read", node.id)
            if isinstance(decision.facts[0], TurnStarted):
                _turn_began(runtime, node)
        effect = decision.effect
        if type(effect) is AskModel:  # a match takes ten times as long
            return ask_model(runtime, node)
        if type(effect) is RunTools:
            if (jobs := run_tools(runtime, node, effect.calls)) is not None:
                return jobs
        elif type(effect) is EndTurn:
            if (work := _end_turn(runtime, node, effect)) is not None:
                return work
            if session.turn is None and has_ends_to_gather(node):
                rest(runtime, node)
                return None
        elif type(effect) is Retry:
            return _try_again(runtime, node, effect)
        elif effect is None:
            rest(runtime, node) if node.unfinished_children else settle(runtime, node)
            runtime.append()
            return None
        else:
            assert_never(effect)


async def _take_slot(runtime: Runtime, node: Node) -> None:
    node.waiting_for = "a slot"
    await runtime.slots.acquire(node)
    node.waiting_for = ""


async def _try_again(runtime: Runtime, node: Node, retry: Retry) -> Reply | None:
    return await ask_model(runtime, node) if await back_off(runtime, node, retry) else None


def _end_turn(runtime: Runtime, node: Node, end: EndTurn) -> Awaitable[object] | None:
    """End the turn as it came; return what is to be awaited then, if anything."""
    result = end.result
    schema = node.profile.result_schema
    if end.status == "completed" and not end.is_final and not node.unfinished_children and schema:
        try:
            result = result_of_text(schema, node.session.turn.last_text if node.session.turn else "")
        except ToolError as unfit:
            runtime.absorb(node, Refuse(str(unfit)))
            return None
    survivors = names_of_unfinished(node) if end.is_final else ()
    runtime.absorb(node, Stop(end.status, end.reason, result, survivors))
    if end.is_final and (known := [mail.seq for mail in node.session.unread if mail.kind == "child"]):
        runtime.record(node, (MailTaken(tuple(known)),))  # a final result is not reopened by ends before it
    if not survivors:
        return None
    runtime.append()
    return end_children(runtime, node, f"{node.name} handed in its result")


def _turn_began(runtime: Runtime, node: Node) -> None:
    runtime.deadlines.start_turn(node)
    if runtime.watchers.count and (turn := node.session.turn):
        last = node.session.messages[-1] if node.session.messages else None
        text = "".join(part.text for part in last.parts if isinstance(part, Text)) if last else ""
        runtime.emit(node, TurnBegan(node.id, node.name, turn.number, text))
