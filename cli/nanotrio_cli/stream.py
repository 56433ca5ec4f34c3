"""Events as records for machines: one JSON object each, in the shapes that readers of Claude Code's stream know.

Every record names its session; those of an agent also name the agent, and below the root the call that spawned it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

import msgspec

from nanotrio.limits import usd
from nanotrio.messages import Message, Text, Thinking, ToolCall, ToolResult
from nanotrio.swarm.events import (
    AgentSpawned,
    AgentWaiting,
    AttemptRetried,
    BudgetWarned,
    Event,
    MemoryShort,
    MessageReplied,
    StoreTroubled,
    TextDelta,
    ThinkingDelta,
    ToolFinished,
    ToolStarted,
    TurnBegan,
    TurnFinished,
)

from .result import usage_record

__all__ = ["StreamRecords", "content_records"]

_SPAWNING = ("spawn_agent", "spawn_agents")


def content_records(message: Message) -> list[dict[str, Any]]:
    """Return a message's parts as content blocks of the Messages format."""
    blocks: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Text():
                blocks.append({"type": "text", "text": part.text})
            case Thinking():
                if part.data:
                    blocks.append({"type": "redacted_thinking", "data": part.data})
                else:
                    blocks.append({"type": "thinking", "thinking": part.text, "signature": part.signature})
            case ToolCall():
                blocks.append(_call_record(part))
            case ToolResult():
                blocks.append(_result_record(part))
            case _:
                assert_never(part)
    return blocks


def _call_record(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeEncodeError):
        arguments = {}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _result_record(result: ToolResult) -> dict[str, Any]:
    return {
        "type": "tool_result",
        "tool_use_id": result.call_id,
        "content": result.content,
        "is_error": result.is_error,
    }


class StreamRecords:
    """Turns events into records; remembers which call spawned which agent."""

    def __init__(self, session_id: str, *, partial_messages: bool) -> None:
        self._session_id = session_id
        self._partial = partial_messages
        self._spawning: dict[int, str] = {}
        self._spawned_by: dict[int, str] = {}

    def opening(self, *, directory: str, model: str, tools: Sequence[str], permission_mode: str) -> dict[str, Any]:
        """Return the first record of a stream."""
        return {
            "type": "system",
            "subtype": "init",
            "cwd": directory,
            "session_id": self._session_id,
            "tools": list(tools),
            "mcp_servers": [],
            "model": model,
            "permissionMode": permission_mode,
        }

    def records(self, event: Event) -> list[dict[str, Any]]:
        """Return what ``event`` is told as; often nothing."""
        made = self._made(event)
        if made is None:
            return []
        made["session_id"] = self._session_id
        if not isinstance(event, (StoreTroubled, MemoryShort)):
            made["agent"] = event.name
            if made["type"] != "system":
                made["parent_tool_use_id"] = self._spawned_by.get(event.agent)
        return [made]

    def _made(self, event: Event) -> dict[str, Any] | None:
        match event:
            case TextDelta():
                return self._delta({"type": "text_delta", "text": event.text})
            case ThinkingDelta():
                return self._delta({"type": "thinking_delta", "thinking": event.text})
            case MessageReplied():
                message: dict[str, Any] = {
                    "type": "message",
                    "role": "assistant",
                    "model": event.message.model,
                    "content": content_records(event.message),
                    "usage": usage_record(event.usage),
                }
                return {"type": "assistant", "message": message}
            case ToolStarted():
                if event.call.name in _SPAWNING:
                    self._spawning[event.agent] = event.call.id
                return None
            case ToolFinished():
                if self._spawning.get(event.agent) == event.call.id:
                    del self._spawning[event.agent]
                return {"type": "user", "message": {"role": "user", "content": [_result_record(event.result)]}}
            case AgentSpawned():
                if event.parent in self._spawning:
                    self._spawned_by[event.agent] = self._spawning[event.parent]
                return _system("agent_spawned", parent=event.parent, agent_id=event.agent, task=event.task)
            case TurnBegan():
                return _system("turn_began", turn=event.turn, text=event.text)
            case TurnFinished():
                outcome = event.outcome
                return _system("turn_finished", turn=outcome.turn, status=outcome.status, reason=outcome.reason)
            case AttemptRetried():
                return _system("api_retry", error=event.reason, retry_delay_ms=round(event.delay_seconds * 1000))
            case AgentWaiting():
                return _system("agent_waiting", reason=event.reason)
            case BudgetWarned():
                spent, cap = usd(event.spent_nano), usd(event.cap_nano)
                return _system("budget_warned", message=event.message, spent_usd=spent, budget_usd=cap)
            case StoreTroubled():
                return _system("store_troubled", error=event.message)
            case MemoryShort():
                return _system("memory_short", error=event.message)
            case _:
                assert_never(event)

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any] | None:
        if not self._partial:
            return None
        return {"type": "stream_event", "event": {"type": "content_block_delta", "index": 0, "delta": delta}}


def _system(subtype: str, **fields: Any) -> dict[str, Any]:
    return {"type": "system", "subtype": subtype, **fields}
