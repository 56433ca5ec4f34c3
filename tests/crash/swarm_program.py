"""The program that is killed: a swarm with tools, whose agents write to each other, wait, are ended and paid for.

Run by ``nanotrio.testing``; see ``test_swarm_survives_sigkill.py``. ``trial.data`` has the numbers of ``roots`` and of
``children`` of each, and ``milliseconds``, how long an effect takes.
"""

from __future__ import annotations

import random
from typing import Any

import trio

import nanotrio
from nanotrio.errors import UnknownAgentError
from nanotrio.models import Conversation, Late, Price, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.testing import Trial

PRICE = Price(1, 1, 1, 1)


def _root(conversation: Conversation, children: int) -> Reply:
    match conversation.steps:
        case 0:
            specs = [{"prompt": f"child {number}", "name": f"c{number}"} for number in range(children)]
            return reply_calls(("spawn_agents", {"agents": specs}), ("spawn_agent", {"prompt": "doomed", "name": "d"}))
        case 1:
            doomed = conversation.results[1].content
            return reply_calls(("note", {"text": "root"}), ("cancel_agent", {"id": doomed}))
        case 2:
            return reply_calls(("wait_agents", {}))
        case _:
            return reply_text("all is done")


def _child(conversation: Conversation, number: int, children: int) -> Reply:
    match conversation.steps:
        case 0:
            return reply_calls(("note", {"text": f"{number}"}), ("put", {"text": f"{number}"}), ("look", {}))
        case 1:
            return reply_calls(("send_message", {"to": f"c{(number + 1) % children}", "text": f"from {number}"}))
        case 2:
            return reply_calls(("note", {"text": f"{number} again"}))
        case 3:
            return reply_calls(("submit_result", {"result": f"{number} is done"}))
        case _:
            return reply_text("read")


async def main(trial: Trial) -> None:
    roots, children = trial.data["roots"], trial.data["children"]
    chance = random.Random(trial.seed)

    def seconds() -> float:
        return chance.uniform(0.0, 2.0) * trial.data["milliseconds"] / 1000

    async def note(text: str) -> str:
        """Have an effect. text: what to note."""
        await trio.sleep(seconds())
        return f"noted {text}"

    async def put(text: str) -> str:
        """Have an effect that may be had again. text: what to put."""
        await trio.sleep(seconds())
        return f"put {text}"

    async def look() -> str:
        """Only look."""
        await trio.sleep(seconds())
        return "seen"

    def script(conversation: Conversation) -> Any:
        kind, _, rest = conversation.task.partition(" ")
        if kind == "root":
            return _root(conversation, children)
        if kind == "doomed":
            return Late(reply_text("never"), 600)
        return Late(_child(conversation, int(rest), children), seconds())

    tools = [
        trial.logged(nanotrio.tool(note)),
        trial.logged(nanotrio.tool(idempotent=True)(put)),
        nanotrio.tool(effect=False)(look),
    ]
    model = ScriptedModel(script, price=PRICE)
    async with nanotrio.open_swarm(store=trial.store, model=model, tools=tools, environment={}) as swarm:
        agents = []
        for number in range(roots):
            uuid = f"root-{number}"
            try:
                agents.append(await swarm.resume(uuid))
            except UnknownAgentError:
                budget: Any = {"budget_usd": 1.0} if number == 0 else {}
                agents.append(await swarm.spawn(f"root {number}", uuid=uuid, name="root", **budget))
        for agent in agents:
            outcome = await agent.wait()
            assert outcome.status == "completed", outcome
    views = await nanotrio.read_store(trial.store)
    assert len(views) == roots * (children + 2), len(views)
