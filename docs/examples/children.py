import os

import trio

import nanotrio

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")
PROMPT = "Let one agent each look into tides, moths and salt; wait for them, and say in a line what they found."


async def main() -> None:
    async with nanotrio.open_swarm(store="sqlite:children.db", model=MODEL) as swarm:
        agent = await swarm.spawn(PROMPT, name="editor")
        outcome = await agent.wait()
        print(outcome.result)
        for view in swarm.agents():
            print("  " * view.depth + view.name, view.outcome, view.task)


trio.run(main)
