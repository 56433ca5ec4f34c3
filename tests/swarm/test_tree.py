"""Spawning, waiting, mail and results, as agents and programs use them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

import nanotrio
from nanotrio.errors import ClosedError, LimitError, UnknownAgentError, UsageError
from nanotrio.limits import Limits
from nanotrio.models.scripted import Conversation
from tests.swarm.worlds import (
    by_task,
    check_all_is_given_back,
    check_store_holds_the_live_state,
    late,
    opened,
    reply_calls,
    reply_text,
)


async def test_a_spawned_child_reports_to_its_parent(autojump_clock: trio.testing.MockClock) -> None:
    root = [
        reply_calls(("spawn_agent", {"prompt": "child work", "name": "kid"})),
        reply_text("waiting"),
        lambda c: reply_text(f"heard {c.last_text}"),
    ]

    def answer(c: Conversation) -> Any:
        step = root[min(c.steps, 2)]
        return step(c) if callable(step) else step

    async with opened(by_task(root=answer, child=[late(5, "kid is done")])) as swarm:
        agent = await swarm.spawn("root go")
        outcome = await agent.wait()
        assert outcome.result == "heard [kid.2 completed: kid is done]"
        assert outcome.turn == 2
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


async def test_many_are_spawned_in_one_call_all_or_none(autojump_clock: trio.testing.MockClock) -> None:
    def root(c: Conversation) -> Any:
        agents = [{"prompt": f"child {number}", "name": "kid"} for number in range(5)]
        match c.steps:
            case 0:
                return reply_calls(("spawn_agents", {"agents": [*agents, {"prompt": " "}]}))
            case 1:
                assert c.results[0].is_error
                return reply_calls(("spawn_agents", {"agents": agents}))
            case 2:
                return reply_calls(("wait_agents", {}))
        return reply_text(c.results[0].content)

    async with opened(by_task(root=root, child=[reply_text("ok")])) as swarm:
        outcome = await (await swarm.spawn("root go")).wait()
        assert outcome.result == "\n".join(f"kid.{number} completed: ok" for number in range(2, 7))
        assert outcome.turn == 1, "what a wait told is not told again"
        assert len(swarm.agents()) == 6


@pytest.mark.parametrize(
    ("arguments", "seconds", "ended"),
    [({"mode": "any"}, 1, 1), ({"mode": "all"}, 3, 3), ({"mode": "all", "timeout_seconds": 2.5}, 2.5, 2)],
)
async def test_a_wait_returns_the_finished_ones(
    autojump_clock: trio.testing.MockClock, arguments: dict[str, Any], seconds: float, ended: int
) -> None:
    seen: list[tuple[float, str]] = []

    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(*[("spawn_agent", {"prompt": f"child {n}", "name": "kid"}) for n in (1, 2, 3)])
        if c.steps == 1:
            return reply_calls(("wait_agents", arguments))
        if c.steps == 2:
            seen.append((trio.current_time() - start, c.results[0].content))
        return reply_text("end")

    async with opened(by_task(root=root, child=lambda c: late(int(c.task[-1])))) as swarm:
        start = trio.current_time()
        await (await swarm.spawn("root go")).wait()
    ((took, told),) = seen
    assert took == pytest.approx(seconds)
    assert told.count("completed: late") == ended
    assert told.count("has not ended") == 3 - ended


async def test_waiting_in_the_spawn_gives_the_childs_result(autojump_clock: trio.testing.MockClock) -> None:
    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(("spawn_agent", {"prompt": "child x", "background": False}))
        return reply_text(c.results[0].content)

    async with opened(by_task(root=root, child=[late(9, "here")])) as swarm:
        assert (await (await swarm.spawn("root go")).wait()).result == "agent.2 completed: here"


async def test_a_steer_is_read_before_the_next_model_call_and_a_text_at_the_next_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    heard: list[str] = []

    @nanotrio.tool(effect=False)
    async def pause() -> str:
        """Wait."""
        await trio.sleep(10)
        return "paused"

    def root(c: Conversation) -> Any:
        heard.append(c.last_text)
        return reply_calls(("pause", {})) if c.steps == 0 else reply_text("end")

    async with opened(by_task(root=root), tools=[pause]) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(5)
        await agent.send("for later")
        await agent.steer("turn left")
        outcome = await agent.wait()
        await check_store_holds_the_live_state(swarm)
    assert heard == ["root go", "turn left", "for later"]
    assert outcome.turn == 2


async def test_children_that_end_together_cost_their_parent_few_turns(autojump_clock: trio.testing.MockClock) -> None:
    def root(c: Conversation) -> Any:
        if c.steps == 0:
            agents = [{"prompt": f"child {n}", "name": "kid"} for n in range(100)]
            return reply_calls(("spawn_agents", {"agents": agents}))
        return late(1.0, f"step {c.steps}")

    # Each child ends within 5 ms of the moment at which the parent's last token comes.
    child = lambda c: late(1.0 + (int(c.task.split()[1]) - 50) / 10_000)  # noqa: E731
    async with opened(by_task(root=root, child=child)) as swarm:
        agent = await swarm.spawn("root go")
        outcome = await agent.wait()
        check_all_is_given_back(swarm)
        session = swarm._runtime.nodes[1].session
        assert not session.unread
        ends = [view.outcome for view in swarm.agents() if view.parent]
    assert ends == ["completed"] * 100
    assert outcome.turn <= 3


async def test_a_result_ends_the_turn_and_the_descendants_and_names_them(
    autojump_clock: trio.testing.MockClock,
) -> None:
    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(*[("spawn_agent", {"prompt": "middle x"}), ("spawn_agent", {"prompt": "quick x"})])
        if c.steps == 1:
            return reply_calls(("wait_agents", {"timeout_seconds": 5}))
        assert c.steps == 2, "a submitted result is not reopened by the ends it caused"
        return reply_calls(("submit_result", {"result": {"answer": 42}}))

    middle = lambda c: reply_calls(("spawn_agent", {"prompt": "leaf x"})) if c.steps == 0 else reply_text("so")  # noqa: E731
    script = by_task(root=root, middle=middle, leaf=[late(999)], quick=[reply_text("q")])
    async with opened(script) as swarm:
        outcome = await (await swarm.spawn("root go")).wait()
        assert outcome.status == "completed"
        assert outcome.result == {"answer": 42}
        assert outcome.survivors == ("agent.2", "agent.4")
        assert outcome.turn == 1
        ends = {view.name: (view.status, view.outcome) for view in swarm.agents()}
        assert ends["agent.4"] == ("closed", "cancelled")
        assert ends["agent.2"][0] == "closed"
        assert ends["agent.3"] == ("idle", "completed")
        check_all_is_given_back(swarm)
        await check_store_holds_the_live_state(swarm)


class Answer(msgspec.Struct):
    number: int


async def test_a_result_is_held_to_its_type() -> None:
    replies = [
        reply_calls(("submit_result", {"result": {"number": "many"}})),
        reply_calls(("submit_result", {"result": {"number": 3}})),
    ]
    async with opened(by_task(root=replies)) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=Answer)).wait()
    assert outcome.result == {"number": 3}
    assert outcome.steps == 2


async def test_a_result_that_never_fits_ends_the_turn_after_three_tries() -> None:
    async with opened(by_task(root=[reply_calls(("submit_result", {"result": "x"}))])) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=Answer)).wait()
    assert outcome.status == "failed"
    assert outcome.steps == 3


async def test_a_text_that_is_not_the_result_asked_for_does_not_end_the_turn() -> None:
    replies = [reply_text("It is three."), reply_calls(("submit_result", {"result": {"number": 3}}))]
    async with opened(by_task(root=replies)) as swarm:
        agent = await swarm.spawn("root go", result_type=Answer)
        outcome = await agent.wait()
        assert outcome.result == {"number": 3}
        assert outcome.steps == 2
        await check_store_holds_the_live_state(swarm)


async def test_texts_that_never_fit_end_the_turn_after_three() -> None:
    async with opened(by_task(root=[reply_text("It is three.")])) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=Answer)).wait()
    assert (outcome.status, outcome.result, outcome.steps) == ("failed", None, 3)
    assert "submit_result" in outcome.reason


@pytest.mark.parametrize(
    ("type_", "text", "result"), [(Answer, '{"number": 3}', {"number": 3}), (str, "three", "three"), (str, "3", "3")]
)
async def test_a_text_that_is_the_result_asked_for_is_taken(type_: Any, text: str, result: Any) -> None:
    async with opened(by_task(root=[reply_text(text)])) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=type_)).wait()
    assert (outcome.status, outcome.result, outcome.steps) == ("completed", result, 1)


async def test_a_turn_that_ends_while_children_run_need_not_fit_yet(autojump_clock: trio.testing.MockClock) -> None:
    replies = [
        reply_calls(("spawn_agent", {"prompt": "child work", "name": "kid"})),
        reply_text("waiting"),
        reply_calls(("submit_result", {"result": {"number": 3}})),
    ]
    async with opened(by_task(root=replies, child=[late(5, "three")])) as swarm:
        outcome = await (await swarm.spawn("root go", result_type=Answer)).wait()
    assert (outcome.result, outcome.turn) == ({"number": 3}, 2)


async def test_the_model_is_told_which_form_its_result_must_have() -> None:
    seen = []

    def root(c: Conversation) -> Any:
        seen.extend(spec.description for spec in c.tools if spec.name == "submit_result")
        return reply_text('{"number": 3}')

    async with opened(by_task(root=root)) as swarm:
        await (await swarm.spawn("root go", result_type=Answer)).wait()
        await (await swarm.spawn("root go")).wait()
    assert '"number"' in seen[0]
    assert '"number"' not in seen[1]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5},
        {"properties": 3},
        {"pattern": "("},
        {"$schema": []},
        {"$ref": "#/nowhere"},
        {"type": "array", "items": {"$ref": "#/$defs/Leak"}, "$defs": {"Leek": {}}},
    ],
)
async def test_a_schema_that_is_none_is_refused_to_model_and_program(schema: dict[str, Any]) -> None:
    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(("spawn_agent", {"prompt": "child x", "result_schema": schema}))
        return reply_text("refused" if c.results[0].is_error else "taken")

    async with opened(by_task(root=root)) as swarm:
        assert (await (await swarm.spawn("root go")).wait()).result == "refused"
        with pytest.raises(UsageError, match="schema"):
            await swarm.spawn("root go", result_type=schema)


async def test_a_schema_never_reaches_the_network() -> None:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        asked = trio.Event()

        async def handler(_: trio.SocketStream) -> None:
            asked.set()

        nursery.start_soon(trio.serve_listeners, handler, listeners)
        port = listeners[0].socket.getsockname()[1]
        elsewhere = {"$ref": f"http://127.0.0.1:{port}/schema.json"}
        part = {"$defs": {"a": {"$id": "http://a.example/"}}, **elsewhere}
        async with opened(by_task(root=[reply_calls(("submit_result", {"result": 1}))])) as swarm:
            with pytest.raises(UsageError, match=r"schema\.json', which is not in it"):
                await swarm.spawn("root go", result_type=elsewhere)
            outcome = await (await swarm.spawn("root go", result_type=part)).wait()
        nursery.cancel_scope.cancel()
    assert outcome.status == "failed"
    assert not asked.is_set()


async def test_a_child_of_a_model_without_a_key_is_an_error_result() -> None:
    def root(c: Conversation) -> Any:
        if c.steps == 0:
            return reply_calls(("spawn_agent", {"prompt": "child x", "model": "anthropic/claude-sonnet-4-5"}))
        return reply_text(c.results[0].content)

    async with opened(by_task(root=root)) as swarm:
        outcome = await (await swarm.spawn("root go")).wait()
    assert "ANTHROPIC_API_KEY" in outcome.result


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (("cancel_agent", {"id": "parent"}), "is not below you"),
        (("cancel_agent", {"id": "agent.2"}), "is not below you"),
        (("cancel_agent", {"id": "agent.1"}), "is not below you"),
        (("wait_agents", {"ids": ["parent"]}), "waits for you"),
        (("wait_agents", {"ids": ["agent.2"]}), "yourself"),
        (("wait_agents", {"ids": ["9" * 5000]}), "no agent is called"),
        (("wait_agents", {}), "nobody to wait for"),
        (("wait_agents", {"ids": ["parent"], "timeout_seconds": -1}), "timeout_seconds is -1"),
        (("spawn_agent", {"prompt": "x", "timeout_seconds": -1}), "timeout_seconds is -1"),
        (("send_message", {"to": "parent", "text": " "}), "the text is empty"),
        (("send_message", {"to": "agent.2", "text": "x"}), "yourself"),
        (("send_message", {"to": "nobody", "text": "x"}), "no agent is called"),
        (("spawn_agent", {"prompt": "x", "budget_usd": -1}), "not negative"),
        (("spawn_agent", {"prompt": "x", "tools": ["bash"]}), "which you do not have"),
        (("spawn_agent", {"prompt": "x", "model": "nobody/x"}), "nobody"),
    ],
)
async def test_a_call_that_cannot_be_made_is_an_error_result(call: tuple[str, Any], says: str) -> None:
    def child(c: Conversation) -> Any:
        return reply_calls(call) if c.steps == 0 else reply_text(c.results[0].content)

    root = [reply_calls(("spawn_agent", {"prompt": "child x", "background": False})), reply_text("end")]
    async with opened(by_task(root=root, child=child)) as swarm:
        await (await swarm.spawn("root go")).wait()
        outcome = await swarm.agent(2).wait()
        assert says in outcome.result
        assert outcome.steps == 2


async def test_the_spawn_tools_are_hidden_at_the_last_level_and_refused_if_called() -> None:
    seen: list[tuple[int, bool]] = []

    def deeper(c: Conversation) -> Any:
        depth = len(c.task.split()) - 1
        if c.steps == 0:
            seen.append((depth, any(tool.name == "spawn_agent" for tool in c.tools)))
            return reply_calls(("spawn_agent", {"prompt": f"{c.task} deeper", "background": False}))
        return reply_text(c.results[0].content)

    async with opened(deeper, limits=Limits(max_depth=3)) as swarm:
        outcome = await (await swarm.spawn("go")).wait()
        assert seen == [(0, True), (1, True), (2, True), (3, False)]
        assert "max_depth is reached: agent.4 is at depth 3, the last level" in outcome.result
        with pytest.raises(LimitError, match="max_depth"):
            await swarm.agent(4).spawn("x")


@pytest.mark.parametrize(
    ("bound", "limits"), [("max_total", Limits(max_total=3)), ("max_children", Limits(max_children=3))]
)
async def test_a_bound_on_spawning_names_itself_and_its_holder(bound: str, limits: Limits) -> None:
    def root(c: Conversation) -> Any:
        if c.steps < 4:
            return reply_calls(("spawn_agent", {"prompt": "child x"}))
        return reply_text(c.results[0].content)

    async with opened(by_task(root=root, child=[reply_text("ok")]), limits=limits) as swarm:
        agent = await swarm.spawn("root go")
        await agent.wait()
        with pytest.raises(LimitError) as refused:
            await agent.spawn("x")
        assert (refused.value.bound, refused.value.value, refused.value.holder) == (bound, 3, "agent.1")
        assert len(swarm.agents()) == 4


async def test_a_full_mailbox_refuses_and_names_its_bound(autojump_clock: trio.testing.MockClock) -> None:
    async with opened(by_task(root=[late(100)]), limits=Limits(max_mailbox=3, max_message_bytes=10)) as swarm:
        agent = await swarm.spawn("root go")
        await trio.sleep(1)
        for _ in range(3):
            await agent.send("x")
        with pytest.raises(LimitError, match=r"max_mailbox of agent\.1") as refused:
            await agent.send("x")
        assert refused.value.holder == "agent.1"
        with pytest.raises(LimitError, match="max_message_bytes"):
            await (await swarm.spawn("root")).send("x" * 11)
        with pytest.raises(UsageError, match="empty"):
            await agent.send(" ")


async def test_unknown_agents_and_ambiguous_names_are_told_apart() -> None:
    async with opened(by_task(root=[reply_text("ok")])) as swarm:
        first = await swarm.spawn("root a", name="twin")
        await swarm.spawn("root b", name="twin")
        with pytest.raises(UnknownAgentError, match="2 agents are called 'twin'"):
            swarm.agent("twin")
        assert swarm.agent(first.uuid).id == first.id
        assert swarm.agent("twin.2").id == 2
        for address in (99, "nobody", "nobody.1", "9" * 5000):
            with pytest.raises(UnknownAgentError):
                swarm.agent(address)
        with pytest.raises(UnknownAgentError):
            await swarm.resume(99)


async def test_a_tree_without_spawn_tools_takes_children_from_its_program(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened(by_task(root=[late(5)], child=[late(50)])) as swarm:
        agent = await swarm.spawn("root go", tools=["submit_result"])
        await trio.sleep(1)
        child = await agent.spawn("child x")
        await trio.sleep(10)
        grandchild = await child.spawn("child y")
        start = trio.current_time()
        await agent.cancel()
        assert trio.current_time() - start < 1
        assert {(await each.wait()).status for each in (child, grandchild)} == {"cancelled"}
        check_all_is_given_back(swarm)
        with pytest.raises(ClosedError, match="closed"):
            await child.spawn("child z")
