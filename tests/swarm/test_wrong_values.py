"""What a program gives by mistake is told in one line, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nanotrio
from nanotrio.errors import UnknownAgentError, UsageError
from nanotrio.models.scripted import reply_text
from nanotrio.tools import standard_tools
from tests.swarm.worlds import opened


def script(_: Any) -> Any:
    return reply_text("ok")


class Plain:
    pass


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"prompt": ["hello"]}, "a prompt is text, and this is of the type list"),
        ({"prompt": Path("poem.txt")}, "a prompt is text, and this is of the type PosixPath"),
        ({"prompt": None}, "a prompt is text, and this is of the type NoneType"),
        ({"tools": "read"}, "tools are a list"),
        ({"tools": standard_tools}, "tools are a list"),
        ({"tools": standard_tools()[0]}, "tools are a list"),
        ({"budget_usd": "1"}, "budget_usd is '1'; give a number"),
        ({"timeout_seconds": "1"}, "timeout_seconds is '1'; give a number"),
        ({"result_type": Plain}, "is not supported); give a msgspec Struct"),
    ],
)
async def test_a_value_of_another_type_is_told(given: dict[str, Any], told: str) -> None:
    async with opened(script) as swarm:
        with pytest.raises(UsageError) as caught:
            await swarm.spawn(**({"prompt": "hello"} | given))
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)
        assert swarm.agents() == []


async def test_a_text_in_the_place_of_many_is_not_taken_letter_by_letter() -> None:
    async with opened(script) as swarm:
        agent = await swarm.spawn("hello")
        with pytest.raises(UsageError, match="prompts is 'hello'; give a list"):
            await agent.spawn_many("hello")
        with pytest.raises(UsageError, match="the items are one text"):
            async with swarm.map("{item}", "notes/*.md"):
                pass
        assert len(swarm.agents()) == 1


async def test_a_function_that_makes_tools_is_no_list_of_them() -> None:
    make: Any = standard_tools
    with pytest.raises(UsageError, match=r"tools are a list, .*standard_tools\(\)"):
        async with nanotrio.open_swarm(tools=make):
            pass


@pytest.mark.parametrize(
    "given",
    [
        {"store": 5}, {"system": None}, {"max_active": None}, {"max_active": float("nan")}, {"max_active": 1.5},
        {"max_memory_bytes": "1"}, {"environment": {"A_KEY": None}}, {"environment": 5}, {"allowed_tools": None},
        {"allowed_tools": "bash"}, {"denied_tools": "bash"}, {"denied_tools": [5]}, {"durability": "synk"},
        {"durability": None}, {"approve": 5}, {"limits": 5}, {"limits": nanotrio.Limits(max_steps=1.5)},  # type: ignore[arg-type]
        {"model": 5},
    ],
    ids=str,
)  # fmt: skip
async def test_a_swarm_is_not_opened_with_what_it_cannot_use(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(UsageError, match=name.removesuffix("s")) as caught:
        async with nanotrio.open_swarm(**given):
            pass
    assert "\n" not in str(caught.value)


async def test_what_an_agent_is_asked_with_a_wrong_value_changes_nothing() -> None:
    async with opened(script) as swarm:
        agent: Any = await swarm.spawn("hello")
        await agent.wait()
        before = agent.view()
        for ask in (
            lambda: agent.send(None),
            lambda: agent.steer(b"x"),
            lambda: agent.set_budget("1"),
            lambda: agent.set_budget(10**400),
            lambda: agent.set_max_steps(None),
            lambda: agent.set_max_steps(2.5),
            lambda: agent.spawn_many(None),
            lambda: agent.spawn_many(5),
            lambda: agent.spawn("x", limits=nanotrio.Limits(max_turns="10")),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError):
                await ask()
        for unknown in (2**63, -1, 10**400):
            with pytest.raises(UnknownAgentError):
                await swarm.find(unknown)
        assert agent.view() == before
        assert len(await agent.spawn_many(text for text in "ab")) == 2


async def test_a_denied_name_that_no_tool_has_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with opened(script, tools=standard_tools(), denied_tools=["Bash", "bsh"]):
        pass
    assert [record.getMessage() for record in caplog.records] == [
        "denied_tools has 'bsh', and no tool of the swarm is called so yet"
    ]
