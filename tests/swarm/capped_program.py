"""A user's own program: fifty children under a cap. Run by a test as ``python -m``, and killed with calls in flight."""

from __future__ import annotations

import sys

import trio

import nanotrio
from nanotrio.limits import Limits

MODEL = "anthropic/claude-haiku-4-5"
CAP_USD = 0.10
CHILDREN = 50
LIMITS = Limits(max_output_tokens=1_600)
"""At 5 USD a million that is 0.008, and the input comes on top: a little below 0.01 in the worst case."""


async def main(store: str) -> None:
    """Spawn all children and wait for them."""
    async with nanotrio.open_swarm(store=store, model=MODEL) as swarm:
        parent = await swarm.spawn("Stay.", name="parent", budget_usd=CAP_USD, limits=LIMITS)
        children = [await parent.spawn(f"Child {number}.", name="child") for number in range(CHILDREN)]
        for child in children:
            await child.wait()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
