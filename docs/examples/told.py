import tempfile

import nanotrio
from nanotrio.errors import UnknownAgentError
from nanotrio.models import Conversation, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.testing import Kill, Trial, run_until_killed


def secretary(conversation: Conversation) -> Reply:
    """Play the model: post a letter and count the letters, then say what it was told."""
    if conversation.steps == 0:
        return reply_calls(("post", {"letter": "Dear Ada"}), ("count", {}))
    for result in conversation.results:
        print(f"  {result.call_id}: {result.content}")
    return reply_text("done")


async def office(trial: Trial) -> None:
    async def post(letter: str) -> str:
        """Post a letter. letter: its text."""
        return f"posted: {letter}"

    async def count() -> str:
        """Count the letters."""
        return "one"

    tools = [nanotrio.tool(post), nanotrio.tool(effect=False)(count)]
    async with nanotrio.open_swarm(store=trial.store, model=ScriptedModel(secretary), tools=tools) as swarm:
        try:
            await swarm.resume("office")
        except UnknownAgentError:
            await swarm.spawn("Post the letter.", uuid="office")


if __name__ == "__main__":
    for point in ("before-intent", "after-intent", "after-effect"):
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(store=f"sqlite:{folder}/office.db", effects=f"{folder}/effects")
            assert run_until_killed(office, trial, Kill(point=point)).killed
            print(f"killed {point}, then resumed:")
            print(run_until_killed(office, trial).output, end="")
