"""``swarm.map``: order, windows, retries, budgets, and jobs that go on."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

import nanotrio
from nanotrio.errors import ClosedError, ModelError, UsageError
from nanotrio.models.scripted import Conversation
from nanotrio.swarm import MapResults, MapStatistics
from nanotrio.swarm import mapping as mapping_file
from nanotrio.swarm.ending import end_trees
from tests.swarm.worlds import (
    DEAR,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
    taped_store,
)


def echo(conversation: Conversation) -> Any:
    return reply_text(f"did {conversation.task}")


class Slow:
    """Answers after as many seconds as the task's last word says, and notes who is at work."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __call__(self, conversation: Conversation) -> Any:
        self.calls.append(conversation.task)
        return late(float(conversation.task.split()[-1]), f"did {conversation.task}")


async def all_of(results: MapResults) -> list[nanotrio.MapResult]:
    return [result async for result in results]


async def test_results_come_in_the_order_of_the_items(autojump_clock: trio.testing.MockClock) -> None:
    seconds = [5, 1, 4, 1, 3, 0]
    async with opened(Slow()) as swarm:
        async with swarm.map("wait {item}", seconds, max_active=3) as results:
            found = await all_of(results)
        assert [(each.index, each.item, each.result) for each in found] == [
            (index, item, f"did wait {item}") for index, item in enumerate(seconds)
        ]
        assert {(each.status, each.reason, each.attempts) for each in found} == {("completed", "", 1)}
        assert trio.current_time() == 5  # 5, beside 1 + 4 and 1 + 3: three at once
        for each in found:
            assert swarm.agent(each.agent).name == each.name
        assert results.statistics() == nanotrio.swarm.MapStatistics(6, 6, 0, 0, 0)
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_the_root_is_never_asked_and_holds_no_notices(autojump_clock: trio.testing.MockClock) -> None:
    def answer(conversation: Conversation) -> Any:
        if conversation.steps == 0:
            return reply_calls(("send_message", {"to": "parent", "text": "hello"}))
        (result,) = conversation.results
        assert result.is_error
        return reply_text(result.content)

    async with opened(answer) as swarm:
        async with swarm.map("say {item}", ["a", "b", "c"]) as results:
            found = await all_of(results)
        assert {each.result for each in found} == {"map.1 only holds its children and reads no mail; write to another"}
        with pytest.raises(ClosedError, match="reads no mail"):
            await results.agent.steer("do something")
        session = swarm.agent(1)._node.session
        assert not session.unread
        assert not session.messages
        assert (session.turns, session.status) == (0, "idle")
        assert session.usage == sum((each.usage for each in found), nanotrio.messages.Usage())


async def test_failures_are_values_and_get_fresh_agents(autojump_clock: trio.testing.MockClock) -> None:
    tries: dict[str, int] = {}

    def answer(conversation: Conversation) -> Any:
        word = conversation.task.split()[-1]
        tries[word] = tries.get(word, 0) + 1
        if word == "bad" or (word == "flaky" and tries[word] < 3):
            return ModelError("no such thing", kind="rejected")
        return reply_text("fine")

    async with opened(answer) as swarm, swarm.map("try {item}", ["good", "bad", "flaky"], retries=2) as results:
        good, bad, flaky = await all_of(results)
    assert tries == {"good": 1, "bad": 3, "flaky": 3}
    assert (good.status, good.attempts) == ("completed", 1)
    assert (bad.status, bad.result, bad.reason, bad.attempts) == ("failed", None, "no such thing", 3)
    assert (flaky.status, flaky.result, flaky.attempts) == ("completed", "fine", 3)
    assert results.statistics().failed == 1


async def test_an_item_without_a_prompt_is_a_failed_result(autojump_clock: trio.testing.MockClock) -> None:
    rows: list[Any] = [
        {"title": "a"},
        {"name": "b"},
        {"title": " "},
        object(),
        {"title": "x" * 300_000},
        {"title": "c"},
    ]
    async with opened(echo) as swarm, swarm.map("{title}", rows, retries=3) as results:
        found = await all_of(results)
    assert [each.status for each in found] == ["completed", "failed", "failed", "failed", "failed", "completed"]
    assert found[1].reason == "item 1 has no prompt: the template asks for {title}, and there is item, name"
    assert found[2].reason == "the prompt is empty; say what the agent is to do"
    assert "max_message_bytes" in found[4].reason
    assert [each.attempts for each in found] == [1, 0, 0, 0, 0, 1]
    assert [each.agent for each in found[1:5]] == [0, 0, 0, 0]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_template_that_the_first_item_has_nothing_for_is_refused_before_any_agent_starts(
    autojump_clock: trio.testing.MockClock, is_async: bool
) -> None:
    rows = [{"title": "a"}, {"titles": "b"}]
    said = r"asks for {titles}, and there is item, title; did you mean {title}\?$"

    async def later() -> AsyncIterator[dict[str, str]]:
        for row in rows:
            yield row

    async with opened(echo) as swarm, swarm.map("{titles}", later() if is_async else rows) as results:
        for _ in range(2):
            with pytest.raises(UsageError, match=said):
                await anext(results)
        assert results.statistics() == MapStatistics(0, 0, 0, 0, 0)


async def test_paths_are_items_and_stay_paths_in_the_results() -> None:
    paths = [Path("notes/a.md"), Path("notes/b.md")]
    async with opened(echo) as swarm, swarm.map("read {item}", paths) as results:
        found = await all_of(results)
    assert [(each.item, each.result) for each in found] == [(path, f"did read {path}") for path in paths]


async def test_an_item_whose_keys_are_no_text_is_refused_or_told_of_as_any_other() -> None:
    async with opened(echo) as swarm:
        async with swarm.map("do {1}", [{1: 2}, {(1, 2): 3}, object()]) as results:
            first, *others = await all_of(results)
        assert (first.item, first.result) == ({1: 2}, "did do 2")
        assert [each.status for each in others] == ["failed", "failed"]
        assert all("cannot be filled into a template; items are texts" in each.reason for each in others)
        async with swarm.map("do {n}", [{1: 2}]) as results:
            with pytest.raises(UsageError, match=r"asks for {n}, and there is item, 1"):
                await anext(results)


async def test_a_function_that_makes_no_text_is_told_of_in_each_result(autojump_clock: trio.testing.MockClock) -> None:
    async def later(_: Any) -> str:
        raise AssertionError

    async with opened(echo) as swarm:
        for function, said in ((later, "the prompt is an async function"), (repr, ""), (len, "returned a int, not")):
            async with swarm.map(function, ["a"]) as results:  # type: ignore[arg-type]  # what callers get wrong
                (found,) = await all_of(results)
            assert said in found.reason
            assert (found.status == "completed") is (not said)


async def test_a_second_task_that_takes_results_is_told(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(Slow()) as swarm, swarm.map("do {item}", [1, 1]) as results:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(anext, results)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(UsageError, match="two tasks take results"):
                await anext(results)
        assert [each.index for each in await all_of(results)] == [1]


class Verdict(msgspec.Struct):
    score: int


async def test_results_are_of_the_type_that_was_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    def answer(conversation: Conversation) -> Any:
        score: Any = int(conversation.task.split()[-1])
        return reply_calls(("submit_result", {"result": {"score": score if score < 2 else "many"}}))

    async with opened(answer) as swarm:
        async with swarm.map("rate {item}", [1, 2], result_type=Verdict, retries=1) as results:
            first, second = await all_of(results)
        schema = {"type": "object", "required": ["score"]}
        async with swarm.map("rate {item}", [1], result_type=schema) as results:
            (plain,) = await all_of(results)
    assert first.result == Verdict(1)
    assert (second.status, second.result, second.attempts) == ("failed", None, 2)
    assert "submit_result" in second.reason
    assert plain.result == {"score": 1}


async def test_what_fits_the_schema_of_a_type_becomes_that_type(autojump_clock: trio.testing.MockClock) -> None:
    def answer(_: Conversation) -> Any:
        return reply_calls(("submit_result", {"result": {"3": 4.0}}))

    async with (
        opened(answer) as swarm,
        swarm.map("count {item}", ["a"], result_type=dict[int, int]) as results,
    ):
        (counted,) = await all_of(results)
    assert (counted.status, counted.result) == ("completed", {3: 4})


async def test_no_more_items_are_read_than_the_window_holds(autojump_clock: trio.testing.MockClock) -> None:
    read = 0

    def items() -> Iterator[int]:
        nonlocal read
        for number in range(1_000):
            read += 1
            yield number

    async with opened(echo) as swarm, swarm.map("do {item}", items(), max_active=4, look_ahead=20) as results:
        async for result in results:
            assert result.index < read <= result.index + 21
            await trio.sleep(1)
            assert len(results._window) <= 20
    assert read == 1_000


async def test_a_slow_item_holds_back_a_window_and_no_more(autojump_clock: trio.testing.MockClock) -> None:
    script = Slow()
    items = [100, *[1] * 50]
    async with opened(script) as swarm, swarm.map("wait {item}", items, max_active=2, look_ahead=10) as results:
        await anext(results)
        assert trio.current_time() == 100
        assert len(script.calls) == 10


async def test_many_items_hold_a_window_of_objects(autojump_clock: trio.testing.MockClock) -> None:
    def held() -> int:
        gc.collect()
        kinds = (nanotrio.MapResult, mapping_file._Entry)
        return sum(isinstance(each, kinds) for each in gc.get_objects())

    async with opened(echo) as swarm, swarm.map("do {item}", range(3_000), max_active=16, look_ahead=50) as results:
        most = 0
        async for result in results:
            if result.index % 500 == 250:
                most = max(most, held())
    assert 0 < most <= 2 * 50 + 2


async def test_items_may_come_slowly_and_results_do_not_wait_for_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    closed = False

    async def items() -> AsyncIterator[int]:
        nonlocal closed
        try:
            for number in range(3):
                yield number
                await trio.sleep(10)
        finally:
            closed = True

    async with opened(echo) as swarm:
        async with swarm.map("do {item}", items()) as results:
            times = [(result.item, trio.current_time()) async for result in results]
        assert times == [(0, 0), (1, 10), (2, 20)]
        closed = False
        async with swarm.map("do {item}", items()) as results:
            await anext(results)
        assert closed


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_the_items_raise_comes_after_the_results_before_it(
    autojump_clock: trio.testing.MockClock, *, is_async: bool
) -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise RuntimeError("the file is gone")

    async def slowly() -> AsyncIterator[int]:
        for item in items():
            await trio.sleep(1)
            yield item

    found = []
    async with opened(echo) as swarm, swarm.map("do {item}", slowly() if is_async else items()) as results:
        with pytest.raises(RuntimeError, match="the file is gone"):
            while True:
                found.append((await anext(results)).item)
    assert found == [1, 2]


async def test_a_taker_that_gives_up_waiting_loses_nothing(autojump_clock: trio.testing.MockClock) -> None:
    script = Slow()
    found = []
    async with opened(script) as swarm, swarm.map("wait {item}", [3, 1, 7, 2], max_active=1) as results:
        while len(found) < 4:
            with trio.move_on_after(0.7):
                found.append((await anext(results)).item)
    assert found == [3, 1, 7, 2]
    assert len(script.calls) == 4


async def test_leaving_early_starts_no_more_and_the_job_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    script = Slow()
    async with opened(script) as swarm:
        async with swarm.map("wait {item}", [1, 2, 3, 4], job="j", max_active=2) as results:
            await anext(results)
        async with swarm.map("wait {item}", [1, 2, 3, 4], job="j", max_active=2) as results:
            with pytest.raises(UsageError, match="is being mapped already"):
                async with swarm.map("wait {item}", [1], job="j"):
                    pass
            assert [each.item for each in await all_of(results)] == [1, 2, 3, 4]
    assert sorted(script.calls) == ["wait 1", "wait 2", "wait 3", "wait 4"]


async def test_a_cap_holds_the_whole_job_and_a_raised_one_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    calls: list[str] = []

    def answer(conversation: Conversation) -> Any:
        calls.append(conversation.task)
        return reply_text("ok", usage=nanotrio.messages.Usage(input=1_000, output=1_000))

    store = taped_store()
    async with opened(answer, price=DEAR, store=store) as swarm:
        async with swarm.map("do {item}", range(20), job="j", budget_usd=0.02, retries=2, max_active=1) as results:
            found = await all_of(results)
        spent = results.agent.view().spent_nano
    done = [each for each in found if each.status == "completed"]
    refused = found[len(done) :]
    assert 0 < len(done) < 20
    assert {(each.status, each.attempts) for each in refused} == {("budget_exceeded", 1)}
    assert "the budget of map.1" in refused[0].reason
    assert spent == sum(each.cost_nano for each in found) <= 20_000_000
    before = len(calls)
    async with (
        opened(answer, price=DEAR, store=store) as swarm,
        swarm.map("do {item}", range(20), job="j", budget_usd=1, max_active=1) as results,
    ):
        again = await all_of(results)
    assert {each.status for each in again} == {"completed"}
    assert again[: len(done)] == done
    assert len(calls) - before == len(refused)


async def test_an_item_has_a_cap_of_its_own_while_the_job_has_as_much(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def answer(_: Conversation) -> Any:
        return reply_text("ok", usage=nanotrio.messages.Usage(input=1_000, output=4_000))

    async with opened(answer, price=DEAR) as swarm:
        async with swarm.map("do {item}", range(4), budget_usd=0.03, item_budget_usd=0.02, max_active=1) as results:
            found = await all_of(results)
        assert [each.status for each in found] == ["completed"] * 4
        caps = [swarm.agent(each.agent)._node.limits.budget_nano for each in found]
        assert caps == [20_000_000, 20_000_000, 20_000_000, None]
        async with swarm.map("do {item}", range(2), budget_usd=1, item_budget_usd=0.001) as results:
            assert {each.status for each in await all_of(results)} == {"budget_exceeded"}


async def test_a_cancelled_job_ends_its_items_as_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    script = Slow()
    async with opened(script) as swarm, swarm.map("wait {item}", [1, 2, 3, 4], max_active=2) as results:
        assert (await anext(results)).status == "completed"
        await results.agent.cancel()
        assert [(each.item, each.status) for each in await all_of(results)] == [
            (2, "cancelled"),
            (3, "cancelled"),
            (4, "cancelled"),
        ]


async def test_who_waits_for_a_result_is_told_that_the_block_was_left(autojump_clock: trio.testing.MockClock) -> None:
    async def take(results: MapResults) -> None:
        with pytest.raises(ClosedError, match="block was left; the same map with its job goes on from there"):
            await anext(results)

    async with trio.open_nursery() as nursery:
        with pytest.raises(RuntimeError):
            async with opened(Slow()) as swarm, swarm.map("wait {item}", [9], job="j") as results:
                nursery.start_soon(take, results)
                await trio.sleep(1)
                raise RuntimeError


async def test_a_stream_of_interrupted_agents_says_so(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(Slow()) as swarm, trio.open_nursery() as nursery, swarm.map("wait {item}", [9]) as results:
        nursery.start_soon(end_as_interrupted, swarm, results)
        with pytest.raises(ClosedError, match=r"item-0-\w+\.2 was interrupted"):
            await anext(results)


async def end_as_interrupted(swarm: nanotrio.Swarm, results: MapResults) -> None:
    await trio.sleep(1)
    await end_trees(swarm._runtime, [results._root], "interrupted", "the test says so")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"items": 3}, "cannot be gone through"),
        ({"items": "items.txt"}, "the items are one text"),
        ({"retries": -1}, "retries is -1; give a whole number, 0 or more"),
        ({"max_active": 0}, "max_active is 0; give a whole number, 1 or more"),
        ({"look_ahead": float("nan")}, "look_ahead is nan; give a whole number"),
        ({"job": ""}, "job is empty"),
        ({"uuid": "x"}, "map takes no uuid"),
        ({"result_type": {"type": 3}}, "no JSON schema"),
        ({"model": "nobody/x"}, "nobody"),
        ({"typo": 1}, "^map takes no typo; it takes model, .*, job, item_budget_usd, retries, .*, look_ahead, key$"),
        ({"tools": ["nothing"]}, "no tool is called"),
    ],
)
async def test_what_cannot_be_used_is_told_before_anything_is_written(options: dict[str, Any], said: str) -> None:
    store = taped_store()
    async with opened(echo, store=store) as swarm:
        with pytest.raises(UsageError, match=said):
            async with swarm.map("do {item}", **{"items": [1], **options}):
                pass
        with pytest.raises(UsageError, match="names nothing"):
            async with swarm.map("do {item", [1]):
                pass
    assert not any(batch.records for batch in store.batches)


async def test_an_item_that_cannot_be_spawned_leaves_those_beside_it_done_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    asked: Counter[str] = Counter()

    def script(c: Conversation) -> Any:
        asked[c.task] += 1
        return reply_text("ok")

    async with opened(script) as swarm:
        async with swarm.map(lambda item: item, ["one", "two", "", "three"]) as results:
            found = await all_of(results)
        assert [each.status for each in found] == ["completed", "completed", "failed", "completed"]
        assert swarm.statistics().resident == 4, "the root and one agent for each item that could be had"
    assert asked == {"one": 1, "two": 1, "three": 1}
