import trio

import nanotrio
from nanotrio.models import ScriptedModel, reply_text


async def main() -> None:
    model = ScriptedModel(lambda conversation: reply_text(f"read: {conversation.task}"))
    async with nanotrio.open_swarm(store="sqlite:durable.db", model=model) as swarm:
        agent = await swarm.spawn("a poem")
        print("the prompt is on disk:", swarm.statistics().durable_seq > 0)
        outcome = await agent.wait()
        print(outcome.result)
        await swarm.flush()
        print("records in memory alone:", swarm.statistics().queued_records)


trio.run(main)
