"""How many agents were spawned below each, where heads do not say so yet."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import msgspec

from ..records import Head

__all__ = ["Births"]


class Births:
    """Agents with their parents and roots, to be counted in those heads that were made before them."""

    def __init__(self) -> None:
        self._children: dict[int, array[int]] = {}
        self._descendants: dict[int, array[int]] = {}
        self._last_agent = 0

    def add(self, heads: Iterable[Head]) -> None:
        """Take note of agents; heads may come again."""
        for head in heads:
            self._last_agent = max(self._last_agent, head.agent)
            if head.parent:
                self._children.setdefault(head.parent, array("q")).append(head.agent)
                self._descendants.setdefault(head.root, array("q")).append(head.agent)

    @property
    def ancestors(self) -> list[int]:
        """The agents whose heads may have to be counted anew, in order."""
        return sorted(self._children.keys() | self._descendants.keys())

    def counted(self, head: Head) -> Head:
        """Return ``head`` with the agents counted that came after those it knows of; itself where there are none."""
        after = head.counted_agent
        children = sum([agent > after for agent in self._children.get(head.agent, ())])
        descendants = sum([agent > after for agent in self._descendants.get(head.agent, ())])
        if not children and not descendants:
            return head
        return msgspec.structs.replace(
            head,
            children=head.children + children,
            descendants=head.descendants + descendants,
            counted_agent=max(after, self._last_agent),
        )
