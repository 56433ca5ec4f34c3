"""The tree as it grows: spawning under every cap of the lineage, and finding agents by what they are called."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import cbor2
import msgspec

from .. import crash
from ..agent_name import name_of, number_of, stem_of
from ..budget import Ledger
from ..errors import BudgetError, ClosedError, LimitError, UnknownAgentError, UnknownToolError, UsageError
from ..fact_form import birth_encoder
from ..limits import HARD_MAX_DEPTH, Limits, usd, usd_text
from ..mail import task_of
from ..messages import clean_text
from ..models import Model
from ..models.catalog import names_like
from ..records import Head, MailArrived, Profile, Spawned
from ..session import Session
from ..tools import SPAWNING, Tool, permission_mode, tighter
from .events import AgentSpawned
from .node import Node
from .rows import RowKind
from .runtime import Kind, Runtime

__all__ = [
    "check_budget",
    "check_prompt",
    "check_room",
    "check_spawn",
    "check_uuid",
    "find",
    "kind_of",
    "listed",
    "make_node",
    "profile_seq",
    "spawn_alike",
    "with_uuid",
]

_MAX_NAME_CHARACTERS = 40
MAX_KINDS = 1_000
"""Kinds of agents that are remembered; more only costs time."""


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
    if parent.children_made + count > limits.max_children:
        raise LimitError(
            f"max_children of {parent.name} is {limits.max_children}, and it has {parent.children_made}, "
            f"{parent.unfinished_children} of them unfinished; let those it has do more",
            bound="max_children",
            value=limits.max_children,
            holder=parent.name,
        )
    root = parent.root
    if root.descendants + count > root.limits.max_total:
        raise LimitError(
            f"max_total of {root.name} is {root.limits.max_total}: {root.descendants} were spawned below it, "
            f"{_unfinished_below(root)} of them unfinished, and {count} more do not fit",
            bound="max_total",
            value=root.limits.max_total,
            holder=root.name,
        )


def _unfinished_below(root: Node) -> int:
    subtree = root.subtree()
    return sum([each.is_counted for each in subtree[1:]]) + sum([each.rows for each in subtree])


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
            f"use a model with a price, or no budget{names_like(model.name)}"
        )


def check_spawn(
    runtime: Runtime, parent: Node | None, prompts: Sequence[str], name: str, profile: Profile
) -> list[str]:
    """Refuse agents that cannot be made, before anything is recorded; return the prompts, cleaned.

    Raises:
        UsageError, BudgetError, LimitError: what is wrong and what to do.
    """
    cleaned = [check_prompt(runtime, prompt, name, profile.limits) for prompt in prompts]
    check_budget(parent, runtime.model(profile.model), name, profile.limits.budget_nano)
    return cleaned


def check_prompt(runtime: Runtime, prompt: str, name: str, limits: Limits) -> str:
    """Refuse a prompt that is empty or too long; return it cleaned.

    Raises:
        UsageError, LimitError: what is wrong and what to do.
    """
    if not isinstance(prompt, str):
        raise UsageError(f"a prompt is text, and this is of the type {type(prompt).__name__}; give a str")
    prompt = runtime.redactor.text(clean_text(prompt))
    if not prompt or prompt.isspace():
        raise UsageError("the prompt is empty; say what the agent is to do")
    if len(prompt) * 4 > limits.max_message_bytes and len(prompt.encode()) > limits.max_message_bytes:
        raise LimitError(
            f"the prompt is longer than max_message_bytes ({limits.max_message_bytes}); put it into a file",
            bound="max_message_bytes",
            value=limits.max_message_bytes,
            holder=name,
        )
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
    stem = chosen_stem(runtime, name)
    root = parent.root if parent else node
    spawned = Spawned(
        parent=parent.id if parent else 0,
        root=root.id,
        depth=parent.session.depth + 1 if parent else 0,
        name=name_of(stem, agent),
        profile=seq,
        uuid="" if parent else clean_text(session_id) or str(uuid.uuid4()),
    )
    runtime.record(node, (spawned, MailArrived("prompt", parent.id if parent else 0, prompt, "")))
    node.ledger.owner = session.name
    if parent is None:
        runtime.residence.taken_up.add(agent)
    else:
        note_children(runtime, parent, 1)
    runtime.count(node)
    runtime.slots.enqueue(node)
    if crash.here is not None:
        crash.here("after-spawn", agent)
    if runtime.watchers.count:
        runtime.emit(node, AgentSpawned(node.id, node.name, spawned.parent, session.task))
    return node


def spawn_alike(
    runtime: Runtime, parent: Node | None, prompts: Sequence[str], name: str, profile: Profile, session_id: str = ""
) -> list[Node | Head]:
    """Make agents that were checked, alike but for their prompts, within the open group, and queue them for slots.

    Where many wait already, those below a parent become rows: they are in the store and in the queue, and of each only
    its head is returned.
    """
    made: list[Node | Head] = []
    for index, prompt in enumerate(prompts):
        if parent is not None and runtime.slots.are_rows_due(parent.session.root):
            return [*made, *_spawn_rows(runtime, parent, prompts[index:], name, profile)]
        made.append(spawn_nowait(runtime, parent, prompt, name, profile, session_id))
    return made


def _spawn_rows(runtime: Runtime, parent: Node, prompts: Sequence[str], name: str, profile: Profile) -> list[Head]:
    kind = kind_of(runtime, parent, profile, None, name)
    root, stem, seq = parent.session.root, chosen_stem(runtime, name), profile_seq(runtime, profile)
    encode = birth_encoder(Spawned(parent.id, root, parent.session.depth + 1, "", seq))
    first_seq, at_us = runtime.burst.begin()
    first = runtime.next_agent
    runtime.next_agent += len(prompts)
    if crash.here is not None:
        crash.here("before-spawn", first)
    heads = [
        Head(
            *(first + index, parent.id, root, name_of(stem, first + index), "pending", True, first_seq + index, 0),
            created_us=at_us,
            updated_us=at_us,
            model=kind.model.name,
            task=task_of(prompt),
            profile=seq,
        )
        for index, prompt in enumerate(prompts)
    ]
    runtime.burst.make(heads, [encode(head.name, prompt) for head, prompt in zip(heads, prompts, strict=True)])
    runtime.slots.push_rows(root, first, first_seq, len(heads), RowKind(parent.id, stem, seq))
    for head in heads if crash.here is not None or runtime.watchers.count else ():
        if crash.here is not None:
            crash.here("after-spawn", head.agent)
        if runtime.watchers.count:
            runtime.emit(parent, AgentSpawned(head.agent, head.name, parent.id, head.task))
    parent.rows += len(heads)
    parent.unfinished_children += len(heads)
    note_children(runtime, parent, len(heads))
    runtime.count(parent)
    runtime.residence.stir()
    return heads


def chosen_stem(runtime: Runtime, name: str) -> str:
    """Return the stem of an agent whom somebody called so."""
    words = runtime.redactor.text(clean_text(name)).replace("/", " ").split()
    return "-".join(words)[:_MAX_NAME_CHARACTERS].strip(".") or "agent"


def check_uuid(uuid: str) -> None:
    """Refuse a new session's id that could not be told from its neighbours where it is printed, or from UUID/NAME.N.

    Raises:
        UsageError: says what an id may be.
    """
    if not uuid.isprintable() or " " in uuid or "/" in uuid:
        raise UsageError(
            f"{uuid!r} cannot name a session; its id is a word of any letters, digits and signs but '/', "
            "without white space and control characters"
        )


def note_children(runtime: Runtime, parent: Node, count: int) -> None:
    """Count what is spawned below ``parent``; its head and its root's say so."""
    root = parent.root
    parent.children_made += count
    root.descendants += count
    runtime.journal.due.mark((parent.id, root.id))


def profile_seq(runtime: Runtime, profile: Profile) -> int:
    """Return the number of the record that holds ``profile``."""
    seq = runtime.profiles.get(profile)
    if seq is None:
        body: bytes = cbor2.dumps(msgspec.to_builtins(profile))
        seq = runtime.profiles[profile] = runtime.burst.content(body)
        runtime.profile_values[seq] = profile
    return seq


def make_node(runtime: Runtime, session: Session, parent: Node | None, profile: Profile) -> Node:
    """Enter a session into the registry, with what its profile and its lineage allow it.

    Raises:
        UnknownToolError: the profile names a tool that is not registered with the swarm.
    """
    kind = kind_of(runtime, parent, profile, session.limits, session.name)
    ledger = Ledger(session.name, kind.limits.budget_nano, parent.ledger if parent else None)
    node = Node(session, parent, ledger, kind)
    runtime.nodes[session.agent] = node
    if parent is not None:
        if parent.children is None:
            parent.children = {}
        parent.children[session.agent] = node
    return node


def kind_of(runtime: Runtime, parent: Node | None, profile: Profile, own: Limits | None, name: str) -> Kind:
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


def listed(names: Sequence[str]) -> str:
    """Return the first of ``names``, and how many more there are."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def find(runtime: Runtime, address: Any) -> Node | None:
    """Return the node in memory, put back where it had left, that an id, a name or a root's uuid stands for."""
    if isinstance(address, int):
        return runtime.residence.here(address)
    if number := number_of(address):
        node = runtime.residence.here(number)
        return node if node is not None and address in (node.name, str(number)) else None
    named = [node for node in runtime.nodes.values() if address == node.session.uuid or stem_of(node.name) == address]
    if len(named) > 1:
        names = listed([node.name for node in named])
        raise UnknownAgentError(f"{len(named)} agents are called {address!r}: {names}; use one of these names")
    return named[0] if named else None


def with_uuid(runtime: Runtime, uuid: str) -> Node | None:
    """Return the root in memory that has a uuid, also one that ends as a name does."""
    return next((node for node in runtime.nodes.values() if uuid and node.session.uuid == uuid), None)
