"""Tool calls that wait for a person: from the agents that ask, to the terminal that answers."""

from __future__ import annotations

import math

import trio

from nanotrio import Approval

from .rules import Rules
from .transcript import call_text

__all__ = ["Approvals", "Request"]


class Request:
    """One call that waits."""

    def __init__(self, approval: Approval) -> None:
        self.approval = approval
        self.gone = trio.Event()
        """The agent waits no more: it was answered, or ended."""
        self._allowed = False

    def question(self) -> str:
        """Return what the person is asked; it names the agent and shows the call whole."""
        return f"{self.approval.name} wants to run {call_text(self.approval.call)}\n"

    def answer(self, *, allowed: bool) -> None:
        """Let the agent go on."""
        self._allowed = allowed
        self.gone.set()

    async def wait(self) -> bool:
        """Return the answer."""
        try:
            await self.gone.wait()
        finally:
            self.gone.set()
        return self._allowed


class Approvals:
    """Requests in the order they came; ``approve`` is what ``open_swarm`` calls."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        # Unbounded, and yet no longer than there are agents at work: each waits for its answer.
        self._send, self.requests = trio.open_memory_channel[Request](math.inf)
        self._always: set[str] = set()

    def allow_always(self, request: Request) -> None:
        """Allow this tool from now on, for every agent of this session."""
        self._always.add(request.approval.call.name)

    def is_allowed(self, request: Request) -> bool:
        """Whether an earlier answer covers this request."""
        return request.approval.call.name in self._always

    async def approve(self, approval: Approval) -> bool:
        """Wait for the person's answer."""
        request = Request(approval)
        if self._rules.allow(approval) or self.is_allowed(request):
            await trio.lowlevel.checkpoint()
            return True
        self._send.send_nowait(request)
        return await request.wait()
