"""The tree as an agent's own tools use it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

import msgspec

from ..agent_name import name_of, number_of, stem_of
from ..errors import ToolError
from ..limits import nano_usd
from ..messages import clean_text
from ..records import Profile
from ..tools import ChildSpec, check_seconds
from ..turn import Submit
from .absent import Absent
from .growing import check_budget, check_prompt, check_room, listed, spawn_alike
from .mailroom import deliver
from .node import Node
from .result import check_result, check_schema
from .row_mail import OpenRow
from .runtime import Runtime
from .waiting import status_of

__all__ = ["SwarmTree"]

_MAX_LISTED = 200


class SwarmTree:
    """Implements the tools' ``Tree`` on a runtime. No method checkpoints."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._sought: frozenset[int] = frozenset()

    def spawn(self, parent: int, specs: Sequence[ChildSpec]) -> list[tuple[int, str]]:
        """Make children for an agent; all of them or none."""
        runtime = self._runtime
        node = runtime.nodes[parent]
        check_room(runtime, node, len(specs))
        budgets: set[Profile] = set()
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
            profile = profiles[key]
            if profile not in budgets:
                check_budget(node, runtime.model(profile.model), spec.name, profile.limits.budget_nano)
                budgets.add(profile)
            plans.append((check_prompt(runtime, spec.prompt, spec.name, profile.limits), spec.name, profile))
        made: list[tuple[int, str]] = []
        for (name, profile), alike in groupby(plans, key=lambda plan: plan[1:]):
            children = spawn_alike(runtime, node, [prompt for prompt, *_ in alike], name, profile)
            made += [
                (child.id, child.name) if isinstance(child, Node) else (child.agent, child.name) for child in children
            ]
        return made

    def _profile(self, node: Node, spec: ChildSpec, schema: str) -> Profile:
        check_seconds(spec.timeout_seconds)
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
        if not text.strip():
            raise ToolError("the text is empty; nothing was sent")
        node = runtime.nodes[sender]
        recipient = self._find(node, to)
        if isinstance(recipient, OpenRow):
            runtime.residence.row_mail.deliver(recipient, "text", node, text)
            return recipient.name
        if recipient is node:
            raise ToolError("that is yourself; name another agent")
        deliver(runtime, recipient, "text", node, text)
        return recipient.name

    def resolve(self, agent: int, address: str) -> int:
        """Return the id of an agent of the same root."""
        return self._resolve(self._runtime.nodes[agent], address).id

    def _resolve(self, node: Node, address: str) -> Node:
        """Return the agent of the same root that is called so, in memory; errors are those of ``_find``."""
        found = self._find(node, address)
        if isinstance(found, OpenRow):
            raise Absent((found.agent,))
        return found

    def _find(self, node: Node, address: str) -> Node | OpenRow:
        """Return the agent of the same root that is called so.

        Raises:
            ToolError: there is none, or there are several.
            Absent: it is to be brought into memory first.
        """
        if address == "parent" and node.parent is not None:
            return node.parent
        if number := number_of(address):
            found = self._here(number)
            root = found.session.root if isinstance(found, Node) else found.root if found is not None else 0
            if found is not None and root == node.session.root and address in (found.name, str(number)):
                return found
            raise ToolError(f"no agent {address!r} in this tree; list_agents names those below you")
        parents = [each for each in (node.parent, node) if each is not None]
        siblings = [child for parent in parents for child in (parent.children or {}).values()]
        rows = self._runtime.slots.rows
        named = [each.id for each in siblings if stem_of(each.name) == address and each is not node]
        live = [each for each in named if self._runtime.nodes[each].session.status != "closed"]
        live += [agent for parent in parents if parent.rows for agent in rows.named(parent.id, address)]
        live = live or named
        if len(live) == 1 and (only := self._here(live[0])) is not None:
            return only
        if live:
            names = listed([name_of(address, agent) for agent in live])
            raise ToolError(f"{len(live)} agents are called {address!r}: {names}; use one of these names")
        raise ToolError(f"no agent is called {address!r} here; list_agents names those below you")

    def _here(self, agent: int) -> Node | OpenRow | None:
        """Return an agent of any tree that is in memory, or takes mail as it is; None where there is none.

        Raises:
            Absent: it may be in the store.
        """
        residence = self._runtime.residence
        found = residence.here(agent) or residence.row_mail.open_row(agent)
        if found is None and agent not in self._sought and 0 < agent < self._runtime.next_agent:
            raise Absent((agent,))
        return found

    @contextmanager
    def without(self, agents: Sequence[int]) -> Iterator[None]:
        """Within the block, those of ``agents`` that are not in memory are taken not to exist."""
        self._sought = self._sought.union(agents)
        try:
            yield
        finally:
            self._sought = frozenset()

    def descendants(self, agent: int) -> list[tuple[str, str, str]]:
        """Return name, status and task of those below that are in memory, the first few hundred, and count the rest."""
        node = self._runtime.nodes[agent]
        subtree = node.subtree()
        listed = subtree[1 : _MAX_LISTED + 1]
        rows = [(each.name, status_of(each), each.session.task) for each in listed]
        # Of those that left memory only a root knows how many there are below them.
        made = node.descendants if node.parent is None else sum([each.children_made for each in subtree])
        if made > len(listed):
            rows.append((f"and {made - len(listed)} more", "", ""))
        if waiting := sum([each.rows for each in subtree]):
            rows.append((f"of them {waiting} wait to be started", "", ""))
        return rows

    def children(self, agent: int) -> list[int]:
        """Return the ids of the agent's children that are unfinished, in memory, or of whose end it was not told."""
        node = self._runtime.nodes[agent]
        children = node.children or {}
        found = [child.id for child in children.values() if child.session.status != "closed"]
        if node.rows:
            found += self._runtime.slots.rows.below(node.id)
        unread = [mail.sender for mail in node.session.unread if mail.kind == "child"]
        found += [agent for agent in unread if agent not in children]
        return sorted(set(found))

    def submit(self, agent: int, result: str) -> None:
        """Take the agent's result."""
        node = self._runtime.nodes[agent]
        result = self._runtime.redactor.text(clean_text(result))
        check_result(node.profile.result_schema, result)
        self._runtime.absorb(node, Submit(result))
