"""Said where a tool addresses agents that are not in memory."""

from __future__ import annotations

__all__ = ["Absent"]


class Absent(Exception):  # noqa: N818 - no error: the call is made again once they are there
    """These agents have to be brought into memory before the call can be made."""

    def __init__(self, agents: tuple[int, ...]) -> None:
        super().__init__(agents)
        self.agents = agents
