from pathlib import Path

import trio

import nanotrio
from nanotrio.models import Conversation, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.tools import standard_tools


def librarian(conversation: Conversation) -> Reply:
    """Play the model: read the file that is asked for, then say how it begins."""
    if conversation.steps == 0:
        return reply_calls(("read", {"path": conversation.task.split()[-1]}))
    (result,) = conversation.results
    if result.is_error:
        return reply_text(f"I could not read it: {result.content}")
    return reply_text(f"It begins: {result.content.splitlines()[0]}")


def ask(directory: Path, prompt: str) -> nanotrio.Outcome:
    async def main() -> nanotrio.Outcome:
        model = ScriptedModel(librarian)
        async with nanotrio.open_swarm(model=model, tools=standard_tools(), directory=directory) as swarm:
            agent = await swarm.spawn(prompt)
            return await agent.wait()

    return trio.run(main)


def test_the_librarian_reads_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "poem.txt").write_text("Rain on the tin roof\n")
    outcome = ask(tmp_path, "How begins poem.txt")
    assert outcome.status == "completed"
    assert "Rain on the tin roof" in outcome.result


def test_the_librarian_says_what_is_missing(tmp_path: Path) -> None:
    outcome = ask(tmp_path, "How begins lost.txt")
    assert outcome.status == "completed"
    assert "could not read" in outcome.result
