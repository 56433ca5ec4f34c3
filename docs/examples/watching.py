import os

import trio

import nanotrio
from nanotrio.swarm.events import TextDelta, ToolStarted, TurnFinished
from nanotrio.tools import standard_tools

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")


async def main() -> None:
    async with (
        nanotrio.open_swarm(model=MODEL, tools=standard_tools()) as swarm,
        swarm.events() as events,
    ):
        agent = await swarm.spawn("Which day is it?")
        async for event in events:
            match event:
                case TextDelta():
                    print(event.text, end="", flush=True)
                case ToolStarted():
                    print(f"[{event.call.name} {event.call.arguments}]")
                case TurnFinished(agent=agent.id):
                    print()
                    break


trio.run(main)
