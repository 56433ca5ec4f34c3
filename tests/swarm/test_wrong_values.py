"""What a program gives by mistake is told in one line, before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nanotrio
from nanotrio.errors import UsageError
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
        with pytest.raises(UsageError, match="the prompts are one text"):
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
