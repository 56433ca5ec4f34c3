import os

import trio

import nanotrio
from nanotrio.tools import standard_tools

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")


async def main() -> None:
    async with nanotrio.open_swarm(store="sqlite:survive.db", model=MODEL, tools=standard_tools()) as swarm:
        for process in await swarm.end_leftovers():
            print(f"ended, since it was still running: {process.command}")
        unfinished = await swarm.resume_all()
        agent = unfinished[0] if unfinished else await swarm.spawn("Build the project with ./build.sh.")
        print("going on" if unfinished else "beginning", flush=True)
        outcome = await agent.wait()
        print(outcome.status, outcome.result or outcome.reason)


trio.run(main)
