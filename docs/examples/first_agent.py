import os

import trio

import nanotrio
from nanotrio.tools import standard_tools

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")


async def main() -> None:
    async with nanotrio.open_swarm(store="sqlite:first.db", model=MODEL, tools=standard_tools()) as swarm:
        agent = await swarm.spawn("Write a haiku about rain into rain.txt, then say how many words it has.")
        outcome = await agent.wait()
        print(outcome.status)
        print(outcome.result)
        print(f"{outcome.steps} model calls, {outcome.cost_usd:.4f} USD")


trio.run(main)
