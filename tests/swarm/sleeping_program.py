"""A user's own program: a swarm whose agents all sleep in ``bash``. Run by tests as ``python -m``, and interrupted.

It is given a store, a directory and the prompt, and leaves how it ended on its last line.
"""

from __future__ import annotations

import sys

import trio

import nanotrio
from nanotrio.tools import bash

MODEL = "anthropic/claude-sonnet-4-5"


async def main(store: str, directory: str, prompt: str) -> None:
    """Spawn the root and wait for it."""
    async with nanotrio.open_swarm(store=store, model=MODEL, tools=[bash], directory=directory) as swarm:
        agent = await swarm.spawn(prompt)
        sys.stdout.write(f"{await agent.wait()}\n")


if __name__ == "__main__":
    try:
        trio.run(main, *sys.argv[1:])
    except KeyboardInterrupt:
        sys.stdout.write("KeyboardInterrupt\n")
