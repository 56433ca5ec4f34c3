"""Jobs of ``swarm.map`` that go on: after a kill, with other items, with another budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import trio

import nanotrio
from nanotrio.errors import ModelError, UsageError
from nanotrio.models.scripted import Conversation
from nanotrio.testing import UnreliableStore
from tests.swarm.worlds import check_all_is_given_back, late, opened, reply_calls, reply_text, sessions_in, taped_store


def echo(conversation: Conversation) -> Any:
    return reply_text(f"did {conversation.task}")


def timed(conversation: Conversation) -> Any:
    return late(float(conversation.task.split()[-1]), f"did {conversation.task}")


ITEMS = [f"{number} {number % 3}" for number in range(12)]


class Counted:
    """Fails the first try of every fourth item, and counts how often each was asked for a first reply."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}

    def __call__(self, conversation: Conversation) -> Any:
        task = conversation.task
        self.asked[task] = self.asked.get(task, 0) + 1
        number, seconds = task.split()[-2:]
        if int(number) % 4 == 1:
            return ModelError("no such thing", kind="rejected")
        return late(float(seconds), f"did {task}")


def shown(result: nanotrio.MapResult) -> tuple[Any, ...]:
    return result.index, result.item, result.status, result.result, result.reason, result.attempts, result.usage


async def run_job(store: Any, script: Any, items: Any = ITEMS, **options: Any) -> list[nanotrio.MapResult]:
    async with opened(script, store=store) as swarm:
        options = {"job": "j", "retries": 1, "max_active": 3, "look_ahead": 8, **options}
        async with swarm.map("do {item}", items, **options) as results:
            found = [result async for result in results]
        check_all_is_given_back(swarm)
        assert sum(node.parent is None for node in swarm._runtime.nodes.values()) == 1
        session = results._root.session
        assert session.turns == len(session.unread) == len(session.messages) == 0
        return found


async def test_a_job_killed_after_any_batch_ends_as_if_it_had_not_been(
    autojump_clock: trio.testing.MockClock,
) -> None:
    whole = taped_store()
    script = Counted()
    expected = [shown(each) for each in await run_job(whole, script)]
    assert set(script.asked.values()) == {1, 2}
    for batches in range(len(whole.batches) + 1):
        store = await whole.as_of(batches)
        finished = {name for name, outcome in await outcomes_in(store) if outcome == "completed"}
        script = Counted()
        found = await run_job(store, script)
        assert [shown(each) for each in found] == expected
        for each in found:
            if any(name.startswith(f"item-{each.index}-") for name in finished):
                assert f"do {each.item}" not in script.asked, "what was finished is not asked for again"
    assert not script.asked, "the last cut is the whole job"


async def outcomes_in(store: UnreliableStore) -> list[tuple[str, str | None]]:
    sessions = (await sessions_in(store)).values()
    return [(session.name, session.ended.fact.status if session.ended else None) for session in sessions]


async def test_a_changed_item_is_done_anew_and_the_others_are_not(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    await run_job(store, echo)
    changed = [*ITEMS[:5], "new 0", *ITEMS[6:], "more 0"]
    script = Counted()
    script.asked.clear()
    calls: list[str] = []

    def answer(conversation: Conversation) -> Any:
        calls.append(conversation.task)
        return echo(conversation)

    found = await run_job(store, answer, changed)
    assert [each.item for each in found] == changed
    assert sorted(calls) == ["do more 0", "do new 0"]
    assert found[5].result == "did do new 0"
    assert [each.attempts for each in found] == [1] * 13


async def test_what_is_unfinished_of_items_that_are_gone_is_cancelled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_job, store, timed, ["1 50", "2 50", "3 50"])
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    found = await run_job(store, timed, ["1 50", "x 1"])
    assert [each.result for each in found] == ["did do 1 50", "did do x 1"]
    outcomes = dict(await outcomes_in(store))
    assert [outcomes[f"{name}"] for name in outcomes if name.startswith(("item-1", "item-2"))] == [
        "cancelled",
        "cancelled",
        "completed",
    ]


async def test_items_that_could_not_be_read_on_end_nothing_of_a_former_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def torn() -> Iterator[str]:
        yield "0 5"
        raise OSError("the line went dead")

    store = taped_store()
    with trio.move_on_after(2):
        await run_job(store, timed, ["0 5", "1 5"])
    with pytest.raises(OSError, match="went dead"):
        await run_job(store, timed, torn())
    assert [each.attempts for each in await run_job(store, timed, ["0 5", "1 5"])] == [1, 1]


async def test_another_prompt_or_model_is_another_question(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    first = await run_job(store, echo, ["a 0"])
    again = await run_job(store, echo, ["a 0"], system="Be brief.")
    assert again[0].agent != first[0].agent
    third = await run_job(store, echo, ["a 0"])
    assert third == first


async def test_failed_items_are_tried_again_where_that_is_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    found = await run_job(store, Counted())
    failed = [each.item for each in found if each.status == "failed"]
    assert len(failed) == 3
    quiet = Counted()
    assert [shown(each) for each in await run_job(store, quiet)] == [shown(each) for each in found]
    assert not quiet.asked
    again = await run_job(store, echo, retry_failed=True)
    assert {each.status for each in again} == {"completed"}
    assert [each.attempts for each in again if each.item in failed] == [3, 3, 3]


class Picky(msgspec.Struct):
    """Takes what its schema does not forbid, and refuses two of it."""

    score: int

    def __post_init__(self) -> None:
        if self.score == 2:
            raise ValueError("two is too few")
        if self.score == 3:
            raise KeyError("three")


async def test_a_result_that_its_type_refuses_is_a_failure_also_when_it_comes_from_the_store(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = taped_store()
    calls: list[str] = []

    def answer(conversation: Conversation) -> Any:
        calls.append(conversation.task)
        return reply_calls(("submit_result", {"result": {"score": int(conversation.task.split()[-1])}}))

    found = await run_job(store, answer, [1, 2, 3], result_type=Picky)
    assert [(each.status, each.result, each.attempts) for each in found] == [
        ("completed", Picky(1), 1),
        ("failed", None, 2),
        ("failed", None, 2),
    ]
    assert found[1].reason == "the result is no Picky: two is too few"
    assert found[2].reason == "the result is no Picky: KeyError: 'three'"
    calls.clear()
    assert [shown(each) for each in await run_job(store, answer, [1, 2, 3], result_type=Picky)] == list(
        map(shown, found)
    )
    assert not calls
    await run_job(store, answer, [1, 2, 3], result_type=Picky, retry_failed=True)
    assert sorted(set(calls)) == ["do 2", "do 3"]


async def test_a_key_says_what_of_an_item_counts(autojump_clock: trio.testing.MockClock) -> None:
    store = taped_store()
    one = [{"id": "1", "at": 1}]
    two = [{"id": "1", "at": 2}]
    calls: list[str] = []

    def answer(conversation: Conversation) -> Any:
        calls.append(conversation.task)
        return reply_text("ok")

    async with opened(answer, store=store) as swarm:
        for items in (one, two):
            async with swarm.map("look at {id}", items, job="j", key=lambda item: item["id"].encode()) as results:
                (found,) = [result async for result in results]
            assert found.item == items[0]
        assert len(calls) == 1
        async with swarm.map("look at {id}", two, job="j") as results:
            assert len([result async for result in results]) == 1
        assert len(calls) == 2


async def test_a_session_that_is_no_job_is_not_taken_for_one(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(echo) as swarm:
        agent = await swarm.spawn("hello")
        with pytest.raises(UsageError, match="which is no map"):
            async with swarm.map("do {item}", [1], job=agent.uuid):
                pass
