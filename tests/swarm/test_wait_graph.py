"""A wait that would never end is found at once, and no other is refused."""

from __future__ import annotations

import random
import time
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.swarm.wait_graph import Mode, WaitGraph


class Call(NamedTuple):
    agent: int
    targets: set[int]
    mode: Mode


class World:
    """A tree of unfinished agents and their waits; who can finish is found by trying."""

    def __init__(self, parents: list[int]) -> None:
        self.parents = {agent: min(parent, agent - 1) for agent, parent in enumerate(parents, 1)}
        self.parents[1] = 0
        self.unfinished = set(self.parents)
        self.calls: list[Call] = []
        self.graph = WaitGraph()

    def lineage(self, agent: int) -> list[int]:
        line = [agent]
        while self.parents[line[-1]]:
            line.append(self.parents[line[-1]])
        return line

    def can_finish(self, calls: list[Call]) -> set[int]:
        able: set[int] = set()
        while True:
            more = {
                agent
                for agent in self.unfinished - able
                if all(child in able for child in self.unfinished if self.parents[child] == agent)
                and all(
                    (any if call.mode == "any" else all)(target in able for target in call.targets)
                    for call in calls
                    if call.agent == agent
                )
            }
            if not more:
                return able
            able |= more

    def wait(self, agent: int, wanted: set[int], mode: Mode) -> None:
        """Ask the graph, and compare."""
        targets = {each for each in wanted & self.unfinished if agent not in self.lineage(each)[1:]}
        if not targets or agent not in self.unfinished:
            return
        call = Call(agent, targets, mode)
        ring = self.graph.ring(self.lineage(agent), sorted(targets), mode)
        assert (ring is None) == (agent in self.can_finish([*self.calls, call]))
        if ring is None:
            self.calls.append(call)
            self.graph.add(self.lineage(agent), targets, mode)
        else:
            self.check(call, ring)

    def check(self, call: Call, ring: list[int]) -> None:
        """Each on the ring is held up by the next, or by one below it that is."""
        if not ring:
            assert call.agent in call.targets
            return
        assert ring[0] in call.targets
        for held, by in zip(ring, [*ring[1:], call.agent], strict=True):
            waits = [each for each in self.calls if each.agent == held and by in each.targets]
            assert waits or held in self.lineage(by)[1:]

    def finish(self, agent: int) -> None:
        if agent not in self.unfinished or any(self.parents[each] == agent for each in self.unfinished):
            return
        if any(call.agent == agent for call in self.calls):
            return
        self.unfinished.discard(agent)
        self.graph.ended(agent)
        for call in self.calls[:]:
            if agent in call.targets:
                call.targets.discard(agent)
                if call.mode == "any" or not call.targets:
                    self.calls.remove(call)

    def give_up(self, agent: int) -> None:
        self.graph.drop(agent)
        self.calls = [call for call in self.calls if call.agent != agent]


AGENTS = 9
STEPS = st.tuples(
    st.sampled_from(["wait", "wait", "wait", "wait", "finish", "give up"]),
    st.integers(1, AGENTS),
    st.sets(st.integers(1, AGENTS), min_size=1, max_size=3),
    st.sampled_from(["all", "any"]),
)


@given(st.lists(st.integers(0, AGENTS), min_size=AGENTS, max_size=AGENTS), st.lists(STEPS, max_size=30))
def test_a_wait_is_refused_exactly_where_it_would_never_end(
    parents: list[int], steps: list[tuple[str, int, set[int], Mode]]
) -> None:
    world = World([max(parent, 1) for parent in parents])
    for what, agent, targets, mode in steps:
        match what:
            case "wait":
                world.wait(agent, targets, mode)
            case "finish":
                world.finish(agent)
            case _:
                world.give_up(agent)
        kept = {(each.agent, frozenset(each.targets), each.mode) for each in world.calls}
        graph = world.graph
        assert {(w.agent, frozenset(w.targets), w.mode) for ws in graph.by_agent.values() for w in ws} == kept
    for agent in range(1, AGENTS + 1):
        world.give_up(agent)
    assert (world.graph.by_agent, world.graph.by_target, world.graph._below) == ({}, {}, {})


def test_a_random_crowd_of_siblings_never_waits_for_ever() -> None:
    chance = random.Random(7)
    world = World([1] * 40)
    for _ in range(400):
        targets = {chance.randint(2, 40) for _ in range(chance.randint(1, 3))}
        world.wait(chance.randint(2, 40), targets, chance.choice(["all", "any"]))
        world.finish(chance.randint(2, 40))
    assert world.can_finish(world.calls) == world.unfinished


@pytest.mark.parametrize("order", ["forwards", "backwards", "all for one"])
def test_ten_thousand_waits_that_close_no_ring_cost_microseconds_each(order: str) -> None:
    graph = WaitGraph()
    agents = range(2, 10_002)
    began = time.process_time()
    for agent in reversed(agents) if order == "backwards" else agents:
        target = 20_000 if order == "all for one" else agent + 1
        assert graph.ring([agent, 1], [target], "all") is None
        graph.add([agent, 1], [target], "all")
    for agent in agents:
        graph.drop(agent)
    assert time.process_time() - began < 2, "a quadratic cost would be minutes"
