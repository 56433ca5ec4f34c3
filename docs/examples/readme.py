import trio

import nanotrio


@nanotrio.tool
async def word_count(path: str) -> int:
    """Count the words of a text file. path: relative to the agent's directory."""
    return len((await trio.Path(path).read_text()).split())


async def main() -> None:
    async with nanotrio.open_swarm(store="sqlite:swarm.db", model="anthropic/claude-sonnet-4-5") as swarm:
        agent = await swarm.spawn("Which file is longest?", tools=[word_count], budget_usd=0.50)
        outcome = await agent.wait()
        print(outcome.status, outcome.result, outcome.cost_usd)


trio.run(main)
