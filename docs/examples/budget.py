import os

import trio

import nanotrio

MODEL = os.environ.get("NANOTRIO_MODEL", "anthropic/claude-sonnet-4-5")


async def main() -> None:
    limits = nanotrio.Limits(max_output_tokens=1_024)
    async with nanotrio.open_swarm(store="sqlite:budget.db", model=MODEL, limits=limits) as swarm:
        agents = [
            await swarm.spawn("Describe a stone.", name="rich", budget_usd=0.10),
            await swarm.spawn("Describe a stone.", name="poor", budget_usd=0.01),
        ]
        for agent in agents:
            outcome = await agent.wait()
            print(f"{outcome.name} {outcome.status} {outcome.cost_usd:.4f}")
            print(f"  {outcome.result or outcome.reason}")


trio.run(main)
