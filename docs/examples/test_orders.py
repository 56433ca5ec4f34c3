from pathlib import Path

import pytest

import nanotrio
from nanotrio.errors import UnknownAgentError
from nanotrio.models import Conversation, Reply, ScriptedModel, reply_calls, reply_text
from nanotrio.testing import CRASH_POINTS, Trial


def clerk(conversation: Conversation) -> Reply:
    """Play the model: book the order, then repeat what came of it."""
    if conversation.steps == 0:
        return reply_calls(("book", {"order": conversation.task}))
    return reply_text(conversation.results[0].content)


async def work(trial: Trial) -> None:
    """The program that is killed: begin what was never begun, go on with the rest, return when all is done."""

    def book(order: str) -> str:
        """Write an order into the book. order: what was ordered."""
        with Path(trial.data["book"]).open("a", encoding="utf-8") as lines:
            lines.write(f"{order}\n")
        return f"booked {order}"

    model = ScriptedModel(clerk)
    async with nanotrio.open_swarm(store=trial.store, model=model, tools=[trial.logged(book)]) as swarm:
        for order in ("bread", "milk"):
            try:
                await swarm.resume(order)
            except UnknownAgentError:
                await swarm.spawn(order, uuid=order)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_no_order_is_booked_twice(crash_runner, tmp_path, point):
    book = tmp_path / "book"
    runner = crash_runner(work, data={"book": str(book)})
    runner.kill_at(point)
    runner.finish()
    lines = book.read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(set(lines))
    assert runner.counts.dispatched == 2
