"""A harness of a hundred lines that plays the job against a server: it proves the equipment, not the product.

It speaks both wires, runs the model's calls one after another, and can pretend, from a seed, that calls were cut off by
a crash before or after their effect: then the model is told that the outcome is unknown.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import httpx
import trio

__all__ = ["TOOLS", "UNKNOWN", "Call", "JsonWire", "TinyHarness", "Wire"]

UNKNOWN = "interrupted; outcome unknown"

TOOLS = ("bash", "read", "edit", "write", "spawn_agent", "wait_agents", "list_agents", "submit_result")

Call = tuple[str, str, dict[str, Any]]
"""Id, tool and arguments."""


class Wire(Protocol):
    """One agent's conversation, on some wire."""

    async def ask(self) -> tuple[str, list[Call]]:
        """Send it all and return the text and the calls of the answer."""
        ...

    def answer(self, results: list[tuple[str, str, bool]]) -> None:
        """Append the results of the calls: ids, contents, and whether they are errors."""
        ...


class JsonWire:
    """Requests put together by hand; not streamed."""

    def __init__(self, client: httpx.AsyncClient, wire: Literal["anthropic", "openai-chat"], prompt: str) -> None:
        self._client = client
        self._wire = wire
        self._messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]

    async def ask(self) -> tuple[str, list[Call]]:
        """Send it all and return the text and the calls of the answer."""
        if self._wire == "anthropic":
            tools: list[dict[str, Any]] = [{"name": name, "input_schema": {"type": "object"}} for name in TOOLS]
            body = {"model": "m", "max_tokens": 1000, "tools": tools, "messages": self._messages}
            answer = (await self._client.post("/v1/messages", json=body)).raise_for_status().json()
            content = answer["content"]
            self._messages.append({"role": "assistant", "content": content})
            text = "".join(block["text"] for block in content if block["type"] == "text")
            return text, [(one["id"], one["name"], one["input"]) for one in content if one["type"] == "tool_use"]
        tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS]
        body = {"model": "m", "tools": tools, "messages": self._messages}
        answer = (await self._client.post("/v1/chat/completions", json=body)).raise_for_status().json()
        message = {name: value for name, value in answer["choices"][0]["message"].items() if value is not None}
        self._messages.append(message)
        functions = [(one["id"], one["function"]) for one in message.get("tool_calls", [])]
        calls = [(call_id, one["name"], json.loads(one["arguments"])) for call_id, one in functions]
        return message.get("content", ""), calls

    def answer(self, results: list[tuple[str, str, bool]]) -> None:
        """Append the results of the calls."""
        if self._wire == "openai-chat":
            self._messages += [{"role": "tool", "tool_call_id": one, "content": content} for one, content, _ in results]
            return
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}
            for call_id, content, is_error in results
        ]
        self._messages.append({"role": "user", "content": blocks})


class TinyHarness:
    """Runs one agent tree in ``directory`` until the root answers without calls."""

    def __init__(self, make_wire: Callable[[str], Wire], directory: Path, *, seed: int = 0, doubt: float = 0.0) -> None:
        self._make_wire = make_wire
        self._directory = directory
        self._chance = random.Random(seed)
        self._doubt = doubt
        self._agents: dict[str, str] = {}
        self.doubts = 0
        """Calls whose outcome the model was told is unknown."""

    async def run(self, prompt: str) -> str:
        """Return the last text of a root with that prompt."""
        wire = self._make_wire(prompt)
        for _ in range(80):
            text, calls = await wire.ask()
            if not calls:
                return text
            results = []
            for call_id, name, arguments in calls:
                content, is_error = await self._perform(name, arguments)
                results.append((call_id, content, is_error))
            wire.answer(results)
            if any(name == "submit_result" for _, name, _ in calls) and not results[-1][2]:
                return text
        return "never ended"

    async def _perform(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        doubted = self._chance.random() < self._doubt
        if doubted and self._chance.random() < 0.5:
            self.doubts += 1
            return UNKNOWN, True
        answer = await self._run_tool(name, arguments)
        if doubted:
            self.doubts += 1
            return UNKNOWN, True
        return answer

    async def _run_tool(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        match name:
            case "bash":
                command = ["bash", "-c", arguments["command"]]
                done = await trio.run_process(command, cwd=self._directory, capture_stdout=True, check=False)
                return done.stdout.decode() or "(no output)", False
            case "read":
                return (self._directory / arguments["path"]).read_text(), False
            case "edit":
                path = self._directory / arguments["path"]
                text = path.read_text()
                if text.count(arguments["old_string"]) != 1:
                    return f"old_string appears {text.count(arguments['old_string'])} times in {path}", True
                path.write_text(text.replace(arguments["old_string"], arguments["new_string"]))
                return f"edited {path}", False
            case "spawn_agent":
                agent = f"{arguments['name']}.{len(self._agents) + 2}"
                self._agents[agent] = "completed"
                await self.run(arguments["prompt"])
                return agent, False
            case "wait_agents" | "list_agents":
                return "\n".join(f"{agent} {status}" for agent, status in self._agents.items()) or "no agents", False
            case _:
                return "accepted", False
