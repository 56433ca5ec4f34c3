"""The tool calls of one reply: vet, intend, run, and bring each to its one result.

Theory of operation
-------------------
Calls of the tree's own tools are made at once, within the open group. Of the others, those that may not run get their
result at once too. Then the intent of every call with an outside effect is recorded and made durable, and all of them
run side by side, each in a task and a cancel scope of its own; each result is recorded the moment it is there, so a
crash in the middle loses only what had none.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import trio

from .. import crash
from ..errors import NanotrioError, ToolError
from ..messages import ToolCall, ToolResult, clean_text
from ..records import MailTaken
from ..session import NO_RESULT
from ..tools import (
    SPAWNING,
    AgentAnswer,
    AgentProcesses,
    Allow,
    Ask,
    Deny,
    EndTree,
    Tool,
    ToolContext,
    ToolOutput,
    Verdict,
    WaitFor,
    fit_output,
    judge,
    strictest,
    tool_name,
    without_person,
)
from ..turn import Intend, ToolReturned
from .absent import Absent
from .ending import end_trees
from .events import AgentWaiting, ToolFinished, ToolStarted
from .node import Node
from .rings import enter_wait
from .runtime import Approval, Runtime
from .waiting import answer_wait

__all__ = ["run_tools"]

_NO_STATE: dict[str, Any] = {}


class _Job:
    """A call that is to be run: its tool, its arguments and what it is waiting for."""

    __slots__ = ("arguments", "call", "pending", "tool")

    def __init__(self, call: ToolCall, tool: Tool, arguments: dict[str, object]) -> None:
        self.call = call
        self.tool = tool
        self.arguments = arguments
        self.pending: WaitFor | EndTree | Absent | None = None


def run_tools(runtime: Runtime, node: Node, calls: tuple[ToolCall, ...]) -> Awaitable[None] | None:
    """Bring each of ``calls`` to its result; return what is to be awaited for that, None where all have theirs."""
    jobs: list[_Job] = []
    for call in calls:
        job = _vet(runtime, node, call)
        if job is None:
            continue
        if not job.tool.inline or _run_inline(runtime, node, job):
            jobs.append(job)
    return _run_all(runtime, node, jobs) if jobs else None


async def _run_all(runtime: Runtime, node: Node, jobs: list[_Job]) -> None:
    """Bring each of ``jobs`` to its result. Cancelled, the calls that have none yet are left open."""
    try:
        jobs = [job for job in jobs if job.pending is not None or await _is_permitted(runtime, node, job)]
        effects = [job for job in jobs if job.pending is None and job.tool.effect]
        if effects:
            if crash.here is not None:
                crash.here("before-intent", node.id)
            runtime.absorb(node, Intend(tuple([job.call.id for job in effects])))
        seq = runtime.append()
        if effects and runtime.settings.durability != "async":
            await runtime.durable(seq)
        if effects and crash.here is not None:
            crash.here("after-intent", node.id)
        if len(jobs) == 1:
            await _run(runtime, node, jobs[0])
        elif jobs:
            async with trio.open_nursery() as nursery:
                for job in jobs:
                    nursery.start_soon(_run, runtime, node, job, name=f"{node.name} {job.call.name}")
    finally:
        node.waiting_for = ""
        if node.id in runtime.waits.by_agent:
            runtime.waits.drop(node.id)
    _put_away(node)


def _vet(runtime: Runtime, node: Node, call: ToolCall) -> _Job | None:
    """Return the call as a job, or answer it with what is wrong about it."""
    name = tool_name(call.name)
    tool = node.tools.get(name)
    if tool is None:
        if name in SPAWNING and name in runtime.tools:
            text = f"max_depth is reached: {node.name} is at depth {node.session.depth}, the last level; do it yourself"
        else:
            text = f"there is no tool {call.name!r}; you have {', '.join(node.tools) or 'none'}"
        _answer(runtime, node, call, text, is_error=True, mistake=f"no tool {call.name}")
        return None
    try:
        return _Job(call, tool, tool.parse(call.arguments))
    except ToolError as error:
        _answer(runtime, node, call, str(error), is_error=True, mistake=f"{call.name}: bad arguments")
    return None


def _run_inline(runtime: Runtime, node: Node, job: _Job) -> bool:
    """Make a call of the tree's own tools; return whether something has to be waited for."""
    for each in node.session.turn.calls if node.session.turn else ():
        if each.child and each.call.id == job.call.id:  # a spawn that waits, taken up after a crash: join it again
            job.pending = WaitFor((each.child,), "all", None, each.child)
            return True
    if runtime.watchers.count and job.pending is None:
        runtime.emit(node, ToolStarted(node.id, node.name, job.call))
    try:
        answer = job.tool.run(_context(runtime, node, job.call, is_inline=True), job.arguments)
        if type(answer) is not ToolOutput:
            _check_aim(runtime, node, answer)
    except Absent as absent:  # it is made again once they are in memory
        job.pending = absent
        return True
    except NanotrioError as error:
        _answer(runtime, node, job.call, str(error), is_error=True, mistake=_mistake(job, error))
        return False
    except Exception as error:  # noqa: BLE001 - the model chose the arguments, and they end no agent
        _answer(runtime, node, job.call, f"{job.call.name} failed: {type(error).__name__}: {error}", is_error=True)
        return False
    if type(answer) is ToolOutput:
        _answer(runtime, node, job.call, answer.content, is_error=answer.is_error)
        return False
    assert isinstance(answer, (WaitFor, EndTree))
    job.pending = answer
    if isinstance(answer, WaitFor) and answer.child:
        runtime.absorb(node, Intend((job.call.id,), answer.child))
    return True


def _mistake(job: _Job, error: NanotrioError) -> str:
    """Return what the model did wrong; a bound that it met is no mistake."""
    if not isinstance(error, ToolError):
        return ""
    if job.tool.spec.name == "submit_result":  # each try may be wrong in another way
        return f"{NO_RESULT}\n{error}"
    return f"{job.call.name}: {error}"


def _check_aim(runtime: Runtime, node: Node, answer: AgentAnswer) -> None:
    """Refuse to wait for those who wait for the caller, and to end one who is not below it."""
    match answer:
        case WaitFor():
            enter_wait(runtime, node, answer)
        case EndTree(agent):
            target = runtime.nodes[agent]
            if not target.is_below(node):
                raise ToolError(f"{target.name} is not below you; list_agents names those you may end")
        case ToolOutput():
            pass


async def _is_permitted(runtime: Runtime, node: Node, job: _Job) -> bool:
    """Judge the call by the rules of the whole lineage, asking a person where there is one; answer a denied one."""
    verdict: Verdict = strictest(
        [
            judge(
                each.profile.permission_mode,  # type: ignore[arg-type]
                job.tool.spec.name,
                effect=job.tool.effect,
                allowed=each.profile.allowed_tools,
                denied=each.profile.denied_tools,
            )
            for each in node.lineage()
        ]
    )
    approve = runtime.settings.approve
    if isinstance(verdict, Ask) and approve is not None:
        runtime.append()
        runtime.slots.release(node)
        node.waiting_for = "a person"
        try:
            answer = await approve(Approval(node.id, node.name, job.call, verdict.text))
        except Exception as error:  # noqa: BLE001 - what cannot be asked is not allowed, and ends no agent
            verdict = Deny(f"{job.call.name} is denied: asking a person failed with {type(error).__name__}: {error}")
        else:
            if answer:
                verdict = Allow()
            elif answer is not None:
                verdict = Deny(f"{job.call.name} was refused by the person who was asked; do without it")
        finally:
            node.waiting_for = ""
        await runtime.slots.acquire(node)
    verdict = without_person(verdict)
    if isinstance(verdict, Deny):
        _answer(runtime, node, job.call, verdict.text, is_error=True)
        return False
    return True


async def _run(runtime: Runtime, node: Node, job: _Job) -> None:
    """Run one job and record its result."""
    agents: dict[int, None] = {}
    while isinstance(job.pending, Absent):
        agents.update(dict.fromkeys(job.pending.agents))  # all that it asked for, or one would leave as another comes
        if not await _run_again(runtime, node, job, tuple(agents)):
            runtime.append()
            return
    told: tuple[int, ...] = ()
    if job.pending is not None:
        output, told = await _wait(runtime, node, job.pending)
        output = await fit_output(_context(runtime, node, job.call, is_inline=True), output)
    else:
        if runtime.watchers.count:
            runtime.emit(node, ToolStarted(node.id, node.name, job.call))
        if crash.here is not None and job.tool.effect:
            crash.here("before-effect", node.id)
        output = await _call(runtime, node, job)
        if crash.here is not None and job.tool.effect:
            crash.here("after-effect", node.id)
    if told:
        runtime.record(node, (MailTaken(told),))
    _answer(runtime, node, job.call, output.content, is_error=output.is_error)
    runtime.append()
    if crash.here is not None and job.tool.effect:
        crash.here("after-result", node.id)


async def _run_again(runtime: Runtime, node: Node, job: _Job, agents: tuple[int, ...]) -> bool:
    """Bring in whom the call is about, and make it again; return whether something has to be waited for."""
    try:
        await runtime.residence.bring_in(agents)
    except NanotrioError as error:
        _answer(runtime, node, job.call, str(error), is_error=True)
        return False
    with runtime.tree.without(agents):
        return _run_inline(runtime, node, job)


async def _call(runtime: Runtime, node: Node, job: _Job) -> ToolOutput:
    """Call the tool; whatever it raises becomes a result, but for a cancel of the agent."""
    seconds = node.limits.tool_seconds
    name = job.call.name
    context = _context(runtime, node, job.call)
    try:
        with trio.move_on_after(seconds):
            output: ToolOutput = await job.tool.run(context, job.arguments)
            return output
        return ToolOutput(f"{name} was stopped: tool_seconds of {node.name} reached ({seconds:g} s)", True)
    except ToolError as error:
        failure = str(error)
    except NanotrioError as error:
        failure = f"{name} failed: {error}"
    except BaseException as error:  # noqa: BLE001, ASYNC103 - the agent's own cancel is raised anew, next
        await trio.lowlevel.checkpoint_if_cancelled()  # noqa: ASYNC102 - without what cleaning up raised beside it
        failure = f"{name} failed: {type(error).__name__}: {error}"
    return await fit_output(context, ToolOutput(failure, True))


def _put_away(node: Node) -> None:
    """Let go of what the agent's calls have not used: most tools start no process and remember nothing."""
    if node.processes is not None and node.processes.is_unused:
        node.processes = None
    if not node.tool_state:
        node.tool_state = None


async def _wait(runtime: Runtime, node: Node, pending: WaitFor | EndTree) -> tuple[ToolOutput, tuple[int, ...]]:
    """Wait without a slot for what the call asked for; return the notices that the output stands for, too.

    No slot is taken for its result: another call of the same reply may still wait for an agent that needs the slot. The
    agent takes one once all its calls have their results.
    """
    runtime.slots.release(node)
    node.waiting_for = "agents" if isinstance(pending, WaitFor) else "a subtree to end"
    if runtime.watchers.count:
        runtime.emit(node, AgentWaiting(node.id, node.name, node.waiting_for))
    if isinstance(pending, WaitFor):
        return await answer_wait(runtime, node, pending)
    await runtime.residence.bring_in((pending.agent,))
    target = runtime.nodes[pending.agent]
    target.is_told = target.parent is node
    remaining = await end_trees(runtime, [target], "cancelled", f"cancelled by {node.name}")
    more = f"; still there: {', '.join(remaining)}" if remaining else ""
    if (ended := target.session.ended) is not None and ended.fact.last_text:
        more += f"; its last text: {ended.fact.last_text}"
    return ToolOutput(f"{target.name} is ended{more}"), ()


def _context(runtime: Runtime, node: Node, call: ToolCall, *, is_inline: bool = False) -> ToolContext:
    """Return what a call may know. Those of the tree, which most agents make alone, keep nothing and start nothing."""
    if is_inline:
        processes, state, key = runtime.no_processes, _NO_STATE, ""
    else:
        if node.processes is None:
            node.processes = AgentProcesses(runtime.owner_token, node.id)
        if node.tool_state is None:
            node.tool_state = {}
        processes, state = node.processes, node.tool_state
        key = f"{node.root.session.uuid}-{node.id}-{call.id}"
    return ToolContext(
        agent=node.id,
        call_id=call.id,
        directory=runtime.path(node.profile.directory),
        environment=runtime.process_environment,
        limits=node.limits,
        output_directory=runtime.output_directory,
        processes=processes,
        idempotency_key=key,
        tree=runtime.tree,
        state=state,
        redactor=runtime.redactor,
    )


def _answer(runtime: Runtime, node: Node, call: ToolCall, content: str, *, is_error: bool, mistake: str = "") -> None:
    content = runtime.redactor.text(clean_text(content))
    runtime.absorb(node, ToolReturned(call.id, content, is_error, mistake))
    if runtime.watchers.count:
        runtime.emit(node, ToolFinished(node.id, node.name, call, ToolResult(call.id, content, is_error)))
