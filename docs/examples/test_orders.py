from pathlib import Path

import pytest

import nanotrio
from nanotrio.errors import UnknownAgentError
from nanotrio.models import ScriptedModel, reply_calls, reply_text
from nanotrio.testing import CRASH_POINTS, MakeRunner, Trial

SCRIPT = [reply_calls(("book", {"order": "bread"})), reply_text("It is in the book.")]


async def work(trial: Trial) -> None:
    def book(order: str) -> None:
        """Write an order into the book. order: what was ordered."""
        with Path(trial.data["book"]).open("a", encoding="utf-8") as lines:
            lines.write(f"{order}\n")

    tools = [trial.logged(book)]
    async with nanotrio.open_swarm(store=trial.store, model=ScriptedModel(SCRIPT), tools=tools) as swarm:
        try:
            await swarm.resume("today")
        except UnknownAgentError:
            await swarm.spawn("Order bread.", uuid="today")


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_bread_is_never_ordered_twice(crash_runner: MakeRunner, tmp_path: Path, point: str) -> None:
    runner = crash_runner(work, data={"book": str(tmp_path / "book")})
    runner.kill_at(point)
    runner.finish()
    assert runner.counts.dispatched == 1
    assert not runner.counts.unknown or runner.counts.between
