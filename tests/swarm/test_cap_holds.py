"""Fifty children under a cap of 0.10: the cap holds, whatever the calls may cost and whatever they do cost."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio

import nanotrio
from nanotrio.limits import Limits, nano_usd
from tests.invocation import environment_in
from tests.servers.conversation import Brain, Conversation, Fault, Reply, Tokens
from tests.servers.model_server import open_model_server
from tests.swarm import capped_program
from tests.swarm.capped_program import CAP_USD, CHILDREN

MODEL = "anthropic/claude-sonnet-4-5"
LIMITS = Limits(max_output_tokens=3_000)
"""At 15 USD a million that is 0.045, and the input comes on top: close to 0.05 in the worst case."""

COSTS_THE_WORST = Tokens(input=1_500, output=3_000)
COSTS_A_THOUSANDTH = Tokens(input=100, output=46)


def _brain(usage: Tokens) -> Brain:
    def brain(conversation: Conversation) -> Reply:
        is_child = "Child" in conversation.prompt
        return Reply(text="Done.", usage=usage if is_child else Tokens(input=1, output=1))

    return brain


async def _run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: Tokens
) -> tuple[list[nanotrio.Outcome], str, int, int]:
    async with open_model_server(_brain(usage), latency_seconds=0.05) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        async with nanotrio.open_swarm(store=f"sqlite:{tmp_path / 'swarm.db'}", model=MODEL) as swarm:
            parent = await swarm.spawn("Stay.", name="parent", budget_usd=CAP_USD, limits=LIMITS)
            children = [await parent.spawn(f"Child {number}.", name="child") for number in range(CHILDREN)]
            waiting = sum(view.waiting_for == f"the budget of {parent.name}" for view in swarm.agents())
            outcomes = [await child.wait() for child in children]
            spent = (await parent.wait()).cost_nano
        assert not server.refusals
        return outcomes, parent.name, spent, waiting


async def test_calls_that_cost_their_worst_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, parent, spent, _ = await _run(tmp_path, monkeypatch, COSTS_THE_WORST)

    assert Counter(outcome.status for outcome in outcomes) == {"completed": 2, "budget_exceeded": 48}
    assert all(parent in outcome.reason for outcome in outcomes if outcome.status == "budget_exceeded")
    assert spent <= nano_usd(CAP_USD)


async def test_calls_that_cost_far_less_than_their_worst_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes, _, spent, waiting = await _run(tmp_path, monkeypatch, COSTS_A_THOUSANDTH)

    assert Counter(outcome.status for outcome in outcomes) == {"completed": 50}
    assert waiting > 25, "the cap has room for two calls at once, so the others wait"
    assert spent <= nano_usd(CAP_USD)


async def test_a_kill_with_ten_calls_in_flight_refills_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_flight: set[str] = set()
    ten = trio.Event()
    killed = False

    def brain(conversation: Conversation) -> Reply | Fault:
        if "Child" not in conversation.prompt:
            return Reply(text="Staying.", usage=Tokens(input=1, output=1))
        if killed:
            return Reply(text="Done.", usage=Tokens(input=100, output=1_600))
        in_flight.add(conversation.prompt)
        if len(in_flight) == 10:
            ten.set()
        return Fault(kind="stall", after_bytes=0)

    store = f"sqlite:{tmp_path / 'swarm.db'}"
    async with open_model_server(brain) as server:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "tests.swarm.capped_program", store],
            cwd=tmp_path,
            env=environment_in(tmp_path / "home", server.environment()),
            stdout=subprocess.DEVNULL,
        )
        try:
            with trio.fail_after(30):
                await ten.wait()
        finally:
            process.kill()
            await process.wait()
        killed = True
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        async with nanotrio.open_swarm(store=store, model=capped_program.MODEL) as swarm:
            agents = await swarm.resume_all()
            for agent in agents:
                await agent.wait()
            views = swarm.agents()
        assert not server.refusals

    (parent,) = [view for view in views if view.parent == 0]
    assert parent.spent_nano + parent.uncertain_nano <= nano_usd(CAP_USD)
    assert parent.uncertain_nano >= nano_usd(0.09), "ten calls in flight count in full"
    assert len(in_flight) == 10
