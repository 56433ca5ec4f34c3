"""Roots take turns, parents below them too, and a pending agent costs a few bytes."""

from __future__ import annotations

import sys
import time
import tracemalloc
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanotrio.swarm.fair_queue import FairQueue


def taken(queue: FairQueue) -> list[int]:
    return [queue.pop() for _ in range(len(queue))]


def test_a_root_that_comes_later_does_not_wait_for_all_of_the_first() -> None:
    queue = FairQueue()
    for item in range(100_000):
        queue.push(1, 1, item)
    for item in range(1_000_000, 1_000_010):
        queue.push(2, 2, item)
    first = [queue.pop() for _ in range(20)]
    assert first == [each for pair in zip(range(10), range(1_000_000, 1_000_010), strict=True) for each in pair]
    assert taken(queue) == list(range(10, 100_000))


def test_parents_below_one_root_take_turns_and_leave_other_roots_their_share() -> None:
    queue = FairQueue()
    for parent in range(10, 14):
        for number in range(3):
            queue.push(1, parent, parent * 100 + number)
    for number in range(3):
        queue.push(2, 2, number)
    assert [queue.pop() for _ in range(6)] == [1000, 0, 1100, 1, 1200, 2]
    assert taken(queue) == [1300, 1001, 1101, 1201, 1301, 1002, 1102, 1202, 1302]


def test_an_empty_queue_has_nothing() -> None:
    queue = FairQueue()
    with pytest.raises(IndexError):
        queue.pop()
    queue.push(1, 0, 5)
    assert (len(queue), queue.pop(), len(queue)) == (1, 5, 0)


def test_a_root_that_is_dropped_is_forgotten() -> None:
    queue = FairQueue()
    for item in range(5):
        queue.push(1, item % 2, item)
        queue.push(2, 2, 10 + item)
    assert (queue.drop(1), queue.drop(1), len(queue)) == (5, 0, 5)
    queue.push(1, 1, 7)
    assert taken(queue) == [10, 7, 11, 12, 13, 14]


MOVES = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans()), max_size=200)


@given(MOVES)
def test_it_is_what_two_rings_of_queues_are(moves: list[tuple[int, int, bool]]) -> None:
    queue = FairQueue()
    model: deque[tuple[int, deque[tuple[int, deque[int]]]]] = deque()
    for item, (root, parent, is_push) in enumerate(moves):
        if is_push or not model:
            queue.push(root, parent, item)
            parents = dict(model).get(root)
            if parents is None:
                parents = deque()
                model.append((root, parents))
            items = dict(parents).get(parent)
            if items is None:
                items = deque()
                parents.append((parent, items))
            items.append(item)
        else:
            first, parents = model.popleft()
            child, items = parents.popleft()
            assert queue.pop() == items.popleft()
            if items:
                parents.append((child, items))
            if parents:
                model.append((first, parents))
    assert len(queue) == sum(len(items) for _, parents in model for _, items in parents)


def test_a_pending_agent_costs_a_few_bytes_and_a_few_microseconds() -> None:
    tracemalloc.start()
    queue = FairQueue()
    for item in range(200_000):
        queue.push(1 + item % 10, 1 + item % 10, item)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size / 200_000 < 12
    queue = FairQueue()
    began = time.process_time()
    for item in range(100_000):
        queue.push(1 + item % 10, 1 + item % 10, item)
    for _ in range(100_000):
        queue.pop()
    assert (time.process_time() - began) / 100_000 < (2e-6 if sys.gettrace() is None else 1) * 4
