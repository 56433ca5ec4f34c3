"""Permissions follow the lineage down, and a person's word is asked for once and kept."""

from __future__ import annotations

from typing import Any

import pytest
import trio

import nanotrio
from nanotrio.models.scripted import Conversation
from tests.swarm.worlds import by_task, check_all_is_given_back, opened, reply_calls, reply_text


@nanotrio.tool
async def write_it() -> str:
    """Write."""
    return "written"


@nanotrio.tool(effect=False)
async def look() -> str:
    """Look."""
    return "seen"


def node(c: Conversation) -> Any:
    """Return a model that passes its task on to a grandchild, which tries both tools."""
    if c.steps == 0 and c.task != "go down down":
        return reply_calls(("spawn_agent", {"prompt": f"{c.task} down", "background": False}))
    if c.steps == 0:
        return reply_calls(("write_it", {}), ("look", {}))
    return reply_text("; ".join(result.content for result in c.results))


async def result_of_grandchild(**options: Any) -> str:
    async with opened(node, tools=[write_it, look], **options) as swarm:
        await (await swarm.spawn("go")).wait()
        check_all_is_given_back(swarm)
        text: str = (await swarm.agent(3).wait()).result
        return text


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "written"),
        ({"denied_tools": ["write_it"]}, "write_it is denied to this agent by its rules"),
        ({"permission_mode": "plan"}, "in plan mode nothing is changed"),
        ({"permission_mode": "manual"}, "nobody is there to ask, so it is denied"),
        ({"permission_mode": "manual", "allowed_tools": ["write_it"]}, "written"),
        ({"permission_mode": "plan", "allowed_tools": ["write_it"]}, "in plan mode nothing is changed"),
    ],
)
async def test_a_roots_rules_hold_for_its_grandchild(options: dict[str, Any], says: str) -> None:
    told = await result_of_grandchild(**options)
    assert says in told
    assert told.endswith("; seen"), "what has no effect is always allowed"


async def test_a_child_cannot_loosen_the_mode_it_is_given() -> None:
    script = by_task(root=[reply_text("ok")], child=node_writes)
    async with opened(script, tools=[write_it], permission_mode="plan") as swarm:
        root = await swarm.spawn("root go")
        child = await root.spawn("child x", permission_mode="bypassPermissions")
        assert "plan mode" in (await child.wait()).result


def node_writes(c: Conversation) -> Any:
    return reply_calls(("write_it", {})) if c.steps == 0 else reply_text(c.results[0].content)


@pytest.mark.parametrize(
    ("answer", "says"),
    [(True, "written"), (False, "refused by the person"), (RuntimeError("no terminal"), "RuntimeError: no terminal")],
)
async def test_a_person_is_asked_and_told_who_asks(answer: bool | Exception, says: str) -> None:
    asked: list[nanotrio.Approval] = []

    async def approve(approval: nanotrio.Approval) -> bool:
        asked.append(approval)
        await trio.lowlevel.checkpoint()
        if isinstance(answer, Exception):
            raise answer
        return answer

    told = await result_of_grandchild(permission_mode="manual", approve=approve)
    assert says in told
    assert [(each.agent, each.name, each.call.name) for each in asked] == [(3, "agent.3", "write_it")]


async def test_a_cancel_while_a_person_is_asked_answers_the_call_as_not_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def approve(_: nanotrio.Approval) -> bool:
        await trio.sleep_forever()
        return True

    script = by_task(root=node_writes)
    async with opened(script, tools=[write_it], permission_mode="manual", approve=approve) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        assert (await agent.cancel()).status == "cancelled"
        (result,) = agent._node.session.messages[-1].parts
        assert getattr(result, "content", "") == "not run: the turn ended first"
        check_all_is_given_back(swarm)
