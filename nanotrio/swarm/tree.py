"""The tree as it grows: spawning under every cap of the lineage, and finding agents by what they are called."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any

import cbor2
import msgspec

from .. import crash
from ..budget import Ledger
from ..errors import BudgetError, ClosedError, LimitError, ToolError, UnknownAgentError, UnknownToolError, UsageError
from ..limits import HARD_MAX_DEPTH, Limits, nano_usd, usd, usd_text
from ..messages import clean_text
from ..models import Model
from ..records import MailArrived, Profile, Spawned
from ..session import Session
from ..tools import SPAWNING, ChildSpec, Tool, permission_mode, tighter
from ..turn import Submit
from .events import AgentSpawned
from .mailroom import deliver
from .node import Node
from .result import check_result, check_schema
from .runtime import Kind, Runtime
from .waiting import status_of

__all__ = ["SwarmTree", "check_budget", "make_node", "profile_seq"]

_MAX_NAME_CHARACTERS = 40
_MAX_LISTED = 200
_MAX_DIGITS = 18
MAX_KINDS = 1_000
"""Kinds of agents that are remembered; more only costs time."""


class SwarmTree:
    """Implements the tools' ``Tree`` on a runtime. No method checkpoints."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def spawn(self, parent: int, specs: Sequence[ChildSpec]) -> list[tuple[int, str]]:
        """Make children for an agent; all of them or none."""
        runtime = self._runtime
        node = runtime.nodes[parent]
        check_room(runtime, node, len(specs))
        profiles: dict[tuple[object, ...], Profile] = {}
        plans = []
        for spec in specs:
            schema = "" if spec.result_schema is None else check_schema(json.dumps(spec.result_schema))
            key = (
                spec.model,
                tuple(spec.tools or ()),
                spec.tools is None,
                spec.budget_usd,
                spec.timeout_seconds,
                schema,
            )
            if key not in profiles:
                profiles[key] = self._profile(node, spec, schema)
            prompt = check_spawn(runtime, node, spec.prompt, spec.name, profiles[key])
            plans.append((prompt, spec.name, profiles[key]))
        children = [spawn_nowait(runtime, node, *plan) for plan in plans]
        return [(child.id, child.name) for child in children]

    def _profile(self, node: Node, spec: ChildSpec, schema: str) -> Profile:
        wanted = node.limits
        if spec.timeout_seconds is not None:
            wanted = msgspec.structs.replace(wanted, turn_seconds=spec.timeout_seconds)
        budget = None if spec.budget_usd is None else nano_usd(spec.budget_usd)
        wanted = msgspec.structs.replace(wanted, budget_nano=budget)
        tools = node.profile.tools if spec.tools is None else self._named(node, spec.tools)
        return msgspec.structs.replace(
            node.profile, model=spec.model or node.profile.model, tools=tools, limits=wanted, result_schema=schema
        )

    def _named(self, node: Node, names: Sequence[str]) -> tuple[str, ...]:
        from ..tools import tool_name

        wanted = tuple([tool_name(name) for name in names])
        for name in wanted:
            if name not in node.profile.tools:
                raise ToolError(
                    f"a child cannot have {name!r}, which you do not have; you have {', '.join(node.profile.tools)}"
                )
        return wanted if "submit_result" in wanted else (*wanted, "submit_result")

    def send(self, sender: int, to: str, text: str) -> str:
        """Deliver a text within the sender's root."""
        runtime = self._runtime
        node = runtime.nodes[sender]
        recipient = runtime.nodes[self.resolve(sender, to)]
        if recipient is node:
            raise ToolError("that is yourself; name another agent")
        deliver(runtime, recipient, "text", node, text)
        return recipient.name

    def resolve(self, agent: int, address: str) -> int:
        """Return the id of an agent of the same root."""
        node = self._runtime.nodes[agent]
        if address == "parent" and node.parent is not None:
            return node.parent.id
        number = address.rpartition(".")[2]
        if number.isdecimal() and len(number) <= _MAX_DIGITS:
            found = self._runtime.nodes.get(int(number))
            if found is not None and found.root is node.root and address in (found.name, number):
                return int(found.id)
            raise ToolError(f"no agent {address!r} in this tree; list_agents names those below you")
        siblings = [*(node.parent.children or () if node.parent else ()), *(node.children or ())]
        named = [each for each in siblings if each.name.rpartition(".")[0] == address and each is not node]
        live = [each for each in named if each.session.status != "closed"] or named
        if len(live) == 1:
            found_id: int = live[0].id
            return found_id
        if live:
            raise ToolError(f"{len(live)} agents are called {address!r}: {_listed(live)}; use one of these names")
        raise ToolError(f"no agent is called {address!r} here; list_agents names those below you")

    def descendants(self, agent: int) -> list[tuple[str, str, str]]:
        """Return name, status and task of those below."""
        below = self._runtime.nodes[agent].subtree()[1:]
        rows = [(each.name, status_of(each), each.session.task) for each in below[:_MAX_LISTED]]
        if len(below) > _MAX_LISTED:
            rows.append((f"and {len(below) - _MAX_LISTED} more", "", ""))
        return rows

    def children(self, agent: int) -> list[int]:
        """Return the ids of the agent's own children."""
        node = self._runtime.nodes[agent]
        return [child.id for child in node.children or () if child.session.status != "closed"]

    def submit(self, agent: int, result: str) -> None:
        """Take the agent's result."""
        node = self._runtime.nodes[agent]
        result = self._runtime.redactor.text(clean_text(result))
        check_result(node.profile.result_schema, result)
        self._runtime.absorb(node, Submit(result))


def _listed(nodes: Sequence[Node]) -> str:
    names = [node.name for node in nodes[:10]]
    return ", ".join(names) + (f" and {len(nodes) - 10} more" if len(nodes) > 10 else "")


def check_room(runtime: Runtime, parent: Node | None, count: int) -> None:
    """Refuse ``count`` children that a cap of the lineage does not allow.

    Raises:
        LimitError: names the bound and its holder.
        ClosedError: the parent, or the swarm, is ending.
    """
    if runtime.is_closing:
        raise ClosedError("the swarm is closing; nothing can be spawned in it any more")
    if parent is None:
        return
    if parent.sealed or parent.session.status == "closed":
        raise ClosedError(f"{parent.name} is closed and cannot spawn; resume it first")
    depth = parent.session.depth + 1
    limits = parent.limits
    bound = min(limits.max_depth, HARD_MAX_DEPTH)
    if depth > bound:
        raise LimitError(
            f"max_depth is reached: {parent.name} is at depth {depth - 1} of at most {bound}; do the work yourself",
            bound="max_depth",
            value=bound,
            holder=parent.name,
        )
    if len(parent.children or ()) + count > limits.max_children:
        raise LimitError(
            f"max_children of {parent.name} is {limits.max_children}, and it has {len(parent.children or ())}, "
            f"{parent.unfinished_children} of them unfinished; let those it has do more",
            bound="max_children",
            value=limits.max_children,
            holder=parent.name,
        )
    root = parent.root
    if root.descendants + count > root.limits.max_total:
        raise LimitError(
            f"max_total of {root.name} is {root.limits.max_total}: {root.descendants} were spawned below it, "
            f"{sum(each.is_counted for each in root.subtree()[1:])} of them unfinished, and {count} more do not fit",
            bound="max_total",
            value=root.limits.max_total,
            holder=root.name,
        )


def check_budget(parent: Node | None, model: Model, name: str, budget_nano: int | None) -> None:
    """Refuse a cap that its lineage cannot hold, and a model without a price where any cap holds."""
    if budget_nano is not None and budget_nano < 0:
        raise UsageError(f"the budget of {name} is {usd(budget_nano):g} USD; give a positive amount")
    tightest = parent.ledger.tightest() if parent else None
    if budget_nano is not None and tightest is not None:
        left = (tightest.cap or 0) - tightest.settled
        if budget_nano > left:
            raise BudgetError(
                f"{name} asks for {usd_text(budget_nano)}, and {tightest.owner} has {usd_text(left)} of its "
                f"{usd(tightest.cap or 0):.6g} left; ask for less",
                bound="budget_usd",
                value=usd(tightest.cap or 0),
                holder=tightest.owner,
            )
    if model.price is None and (budget_nano is not None or tightest is not None):
        raise UsageError(
            f"the price of {model.name} is unknown, so the budget over {name} cannot be kept; "
            "use a model with a price, or no budget"
        )


def check_spawn(runtime: Runtime, parent: Node | None, prompt: str, name: str, profile: Profile) -> str:
    """Refuse an agent that cannot be made, before anything is recorded; return the prompt, cleaned.

    Raises:
        UsageError, BudgetError, LimitError: what is wrong and what to do.
    """
    prompt = runtime.redactor.text(clean_text(prompt))
    limits = profile.limits
    if not prompt.strip():
        raise UsageError("the prompt is empty; say what the agent is to do")
    if len(prompt.encode()) > limits.max_message_bytes:
        raise LimitError(
            f"the prompt is longer than max_message_bytes ({limits.max_message_bytes}); put it into a file",
            bound="max_message_bytes",
            value=limits.max_message_bytes,
            holder=name,
        )
    check_budget(parent, runtime.model(profile.model), name, limits.budget_nano)
    return prompt


def spawn_nowait(
    runtime: Runtime, parent: Node | None, prompt: str, name: str, profile: Profile, session_id: str = ""
) -> Node:
    """Make an agent that was checked, with its first mail, within the open group, and queue it for a slot."""
    agent = runtime.next_agent
    runtime.next_agent += 1
    if crash.here is not None:
        crash.here("before-spawn", agent)
    seq = profile_seq(runtime, profile)
    session = Session(agent)
    node = make_node(runtime, session, parent, profile)
    stem = "-".join(runtime.redactor.text(clean_text(name)).split())[:_MAX_NAME_CHARACTERS].strip(".") or "agent"
    root = parent.root if parent else node
    spawned = Spawned(
        parent=parent.id if parent else 0,
        root=root.id,
        depth=parent.session.depth + 1 if parent else 0,
        name=f"{stem}.{agent}",
        profile=seq,
        uuid="" if parent else clean_text(session_id) or str(uuid.uuid4()),
    )
    runtime.record(node, (spawned, MailArrived("prompt", parent.id if parent else 0, prompt, "")))
    node.ledger.owner = session.name
    root.descendants += 1 if parent else 0
    runtime.count(node)
    runtime.slots.enqueue(node)
    if crash.here is not None:
        crash.here("after-spawn", agent)
    if runtime.watchers.count:
        runtime.emit(node, AgentSpawned(node.id, node.name, spawned.parent, session.task))
    return node


def profile_seq(runtime: Runtime, profile: Profile) -> int:
    """Return the number of the record that holds ``profile``."""
    seq = runtime.profiles.get(profile)
    if seq is None:
        body: bytes = cbor2.dumps(msgspec.to_builtins(profile))
        seq = runtime.profiles[profile] = runtime.burst.content(body)
    return seq


def make_node(runtime: Runtime, session: Session, parent: Node | None, profile: Profile) -> Node:
    """Enter a session into the registry, with what its profile and its lineage allow it.

    Raises:
        UnknownToolError: the profile names a tool that is not registered with the swarm.
    """
    kind = _kind(runtime, parent, profile, session.limits, session.name)
    limits = kind.limits
    ledger = Ledger(session.name, limits.budget_nano, parent.ledger if parent else None)
    node = Node(session, parent, kind.profile, limits, ledger, kind.model, kind.tools, may_spawn=kind.may_spawn)
    runtime.nodes[session.agent] = node
    if parent is not None:
        if parent.children is None:
            parent.children = []
        parent.children.append(node)
    return node


def _kind(runtime: Runtime, parent: Node | None, profile: Profile, own: Limits | None, name: str) -> Kind:
    """Return what a profile comes to below ``parent``, where ``own`` limits were set in flight, if they were."""
    depth = parent.session.depth + 1 if parent else 0
    above = parent.limits if parent else None
    mode = parent.profile.permission_mode if parent else profile.permission_mode
    wanted = own or profile.limits
    may_spawn = depth < min(wanted.max_depth, HARD_MAX_DEPTH, above.max_depth if above else HARD_MAX_DEPTH)
    key = (profile, own, above, mode, may_spawn)
    kind = runtime.kinds.get(key)
    if kind is not None:
        return kind
    limits = wanted if above is None else msgspec.structs.replace(wanted.within(above), budget_nano=wanted.budget_nano)
    tighter_mode = tighter(permission_mode(profile.permission_mode), permission_mode(mode))
    tools: dict[str, Tool] = {}
    for each in profile.tools:
        if each not in runtime.tools:
            raise UnknownToolError(
                f"{name or 'the agent'} uses the tool {each!r}, which is not registered; "
                "pass it in open_swarm(tools=[...])"
            )
        if may_spawn or each not in SPAWNING:
            tools[each] = runtime.tools[each]
    kind = Kind(
        msgspec.structs.replace(profile, permission_mode=tighter_mode),
        limits,
        runtime.model(profile.model),
        tools,
        may_spawn and not SPAWNING.isdisjoint(tools),
    )
    if len(runtime.kinds) >= MAX_KINDS:
        runtime.kinds.clear()
    runtime.kinds[key] = kind
    return kind


def find(runtime: Runtime, address: Any) -> Node | None:
    """Return the node in memory that an id, a name or a root's uuid stands for."""
    if isinstance(address, int):
        return runtime.nodes.get(address)
    number = str(address).rpartition(".")[2]
    if number.isdecimal() and len(number) <= _MAX_DIGITS:
        node = runtime.nodes.get(int(number))
        return node if node is not None and address in (node.name, number) else None
    named = [
        node
        for node in runtime.nodes.values()
        if address == node.session.uuid or node.name.rpartition(".")[0] == address
    ]
    if len(named) > 1:
        raise UnknownAgentError(f"{len(named)} agents are called {address!r}: {_listed(named)}; use one of these names")
    return named[0] if named else None
