import os

import trio

import nanotrio
from nanotrio.swarm.events import BudgetWarned

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")
LIMITS = nanotrio.Limits(max_output_tokens=1_024)


async def keep(agent: nanotrio.Agent) -> None:
    """Raise the cap when three quarters of it are spent."""
    async with agent.events() as events:
        async for event in events:
            if isinstance(event, BudgetWarned):
                print(event.message)
                await agent.set_budget(0.20)
                return


async def main() -> None:
    async with nanotrio.open_swarm(store="sqlite:money.db", model=MODEL, limits=LIMITS) as swarm:
        async with trio.open_nursery() as nursery:
            press = await swarm.spawn("Let five agents write a page each.", name="press", budget_usd=0.10)
            nursery.start_soon(keep, press)
            outcome = await press.wait()
            nursery.cancel_scope.cancel()
        print(outcome.status, outcome.result)
        budget = press.budget()
        print(
            f"spent {budget.settled_usd:.3f} of {budget.cap_usd:.3f}, {budget.left_usd:.3f} left in {budget.tightest}"
        )


trio.run(main)
