"""The task of an agent: turns, waiting for descendants, and the end.

Theory of operation
-------------------
``run_agent`` is started in the parent's nursery. It opens a nursery of its own when it has children to start, and does
its *own work* in a cancel scope that does not enclose that nursery, so cancelling an agent's work never reaches its
children except through scopes of their own::

    run_agent
    └── nursery of the children          ended when the last of them has
        └── own work, in node.scope      cancelled by a deadline, a stop, or the end of the subtree

Own work goes round ``turn.advance`` until the state asks for nothing more. Then the agent *settles*: the fact is
written, the parent is told, and the task ends. Everything up to that moment happens without an await, so mail that
comes a moment later finds no task and starts one.
"""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias, assert_never

import trio

from .. import crash
from ..errors import ToolError
from ..messages import Text, clean_text
from ..records import MailTaken, TurnStarted
from ..turn import AskModel, Decision, EndTurn, Refuse, Retry, RunTools, Stop, advance
from .calls import ask_model, back_off
from .dispatch import run_tools
from .ending import end_children, names_of_unfinished
from .events import TurnBegan
from .node import Node
from .pump import Parked
from .result import result_of_text
from .runtime import Runtime
from .settling import close, end_sealed, settle, tell_stopped

_log = logging.getLogger("nanotrio")

_CameTo: TypeAlias = Literal["nursery", "settled", "sealed"]
"""A nursery is needed first; nothing is left to do; the subtree was sealed."""

__all__ = ["run_agent"]


@trio.lowlevel.enable_ki_protection
async def run_agent(runtime: Runtime, node: Node) -> None:
    """Run the agent until it has nothing left to do, or its subtree is sealed."""
    came_to: _CameTo = "nursery"
    while came_to == "nursery":
        if node.may_spawn or node.to_start:
            async with trio.open_nursery() as nursery:
                node.nursery = nursery
                for child in node.to_start or ():
                    nursery.start_soon(runtime.run_agent, child, name=child.name)
                node.to_start = None
                came_to = await _own_work(runtime, node)
                if node.nursery is nursery:
                    node.nursery = None
        else:
            came_to = await _own_work(runtime, node)
        if came_to == "sealed" and node.to_start:
            came_to = "nursery"  # they count as started, so only a task can end them
    if came_to == "sealed":
        if node.sealed == "cancelled":
            await runtime.residence.rows_gone(node)
        end_sealed(runtime, node)


async def _own_work(runtime: Runtime, node: Node) -> _CameTo:
    """Do the agent's own work; return what it came to.

    A node that settled may have another task by the time this one has ended, so what it holds then is not asked.
    """
    while _goes_on(node):
        needs_nursery = False
        with trio.CancelScope() as scope:
            node.scope = scope
            needs_nursery = await _live_on(runtime, node)
        if not scope.cancelled_caught:
            return "nursery" if needs_nursery else "settled"
        node.scope = None
        runtime.append()
        if node.stop is not None and _goes_on(node):
            (status, reason), node.stop = node.stop, None
            survivors = names_of_unfinished(node)
            if node.session.turn is not None:
                runtime.absorb(node, Stop(status, reason, survivors=survivors))
                runtime.append()
            await end_children(runtime, node, f"{node.name} was stopped: {reason}")
            tell_stopped(node)
    runtime.slots.release(node)
    if node.sealed == "cancelled":
        close(runtime, node)
        runtime.append()
    return "sealed"


def _goes_on(node: Node) -> bool:
    """Whether the agent was not sealed; a function, since it changes behind every await."""
    return node.sealed is None


async def _live_on(runtime: Runtime, node: Node) -> bool:
    """Live; what breaks unforeseen ends the turn as failed, and harms nobody else."""
    while True:
        try:
            return await _live(runtime, node)
        except Exception as error:
            if runtime.journal.failed is None:
                if node.session.turn is None:
                    raise
                _log.exception("the turn of %s broke", node.name)
                reason = runtime.redactor.text(clean_text(f"nanotrio broke: {type(error).__name__}: {error}"))
                runtime.absorb(node, Stop("failed", reason))
                continue
        except BaseExceptionGroup:  # the agent's own cancel is raised anew, without what cleaning up raised beside it
            await trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC120
            raise
        await trio.sleep_forever()  # nothing can be written any more, and the swarm is being ended


async def _live(runtime: Runtime, node: Node) -> bool:
    """Go round until nothing is left to do (False), or children wait for a nursery (True)."""
    session = node.session
    if session.turn is not None:
        runtime.deadlines.start_turn(node)
    while True:
        if node.to_start and node.nursery is None:
            runtime.append()
            return True
        if (session.turn is not None or session.unread) and not node.has_slot:
            runtime.append()
            node.waiting_for = "a slot"
            await runtime.slots.acquire(node)
            node.waiting_for = ""
        if runtime.settings.durability == "sync":
            await runtime.durable(runtime.append())
        elif runtime.journal.is_full or runtime.journal.failed:
            runtime.append()
            await runtime.room()
        decision = advance(session, node.limits)
        if decision.facts:
            if crash.here is not None:
                crash.here("before-read", node.id)
            runtime.record(node, decision.facts)
            if crash.here is not None:
                crash.here("after-read", node.id)
            if isinstance(decision.facts[0], TurnStarted):
                _turn_began(runtime, node)
        if decision.effect is None:
            if not node.unfinished_children:
                settle(runtime, node)
                runtime.append()
                return False
            await _wait_for_news(runtime, node)
        else:
            await _perform(runtime, node, decision)


async def _perform(runtime: Runtime, node: Node, decision: Decision) -> None:
    effect = decision.effect
    match effect:
        case AskModel():
            await ask_model(runtime, node)
        case RunTools(calls):
            await run_tools(runtime, node, calls)
        case Retry():
            if await back_off(runtime, node, effect):
                await ask_model(runtime, node)
        case EndTurn(status, reason, result, is_final):
            if status == "completed" and not is_final and not node.unfinished_children and node.profile.result_schema:
                try:
                    result = result_of_text(
                        node.profile.result_schema, node.session.turn.last_text if node.session.turn else ""
                    )
                except ToolError as unfit:
                    runtime.absorb(node, Refuse(str(unfit)))
                    return
            survivors = names_of_unfinished(node) if is_final else ()
            runtime.absorb(node, Stop(status, reason, result, survivors))
            if is_final and (known := [mail.seq for mail in node.session.unread if mail.kind == "child"]):
                runtime.record(node, (MailTaken(tuple(known)),))  # a final result is not reopened by ends before it
            if survivors:
                runtime.append()
                await end_children(runtime, node, f"{node.name} handed in its result")
        case None:
            pass
        case _:
            assert_never(effect)


def _turn_began(runtime: Runtime, node: Node) -> None:
    runtime.deadlines.start_turn(node)
    if runtime.watchers.count and (turn := node.session.turn):
        last = node.session.messages[-1] if node.session.messages else None
        text = "".join(part.text for part in last.parts if isinstance(part, Text)) if last else ""
        runtime.emit(node, TurnBegan(node.id, node.name, turn.number, text))


async def _wait_for_news(runtime: Runtime, node: Node) -> None:
    """Sleep until mail comes or the last child has ended; the slot is given back meanwhile."""
    runtime.append()
    runtime.slots.release(node)
    node.parked = parked = Parked()
    node.waiting_for = "its children"
    try:
        await parked.wait()
        await trio.lowlevel.checkpoint()  # whoever ends in the same pass is told of in the same turn
    finally:
        node.parked = None
        node.waiting_for = ""
