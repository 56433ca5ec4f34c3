"""A harness of a hundred lines that plays the job against a server: it proves the equipment, not the product.

It speaks both wires, runs the model's calls one after another, and can pretend, from a seed, that calls were cut off by
a crash before or after their effect: then the model is told that the outcome is unknown.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, Literal

import httpx
import trio

__all__ = ["UNKNOWN", "TinyHarness"]

UNKNOWN = "interrupted; outcome unknown"


class TinyHarness:
    """Runs one agent tree in ``directory`` until the root answers without calls."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        directory: Path,
        wire: Literal["anthropic", "openai-chat"],
        *,
        seed: int = 0,
        doubt: float = 0.0,
    ) -> None:
        self._client = client
        self._directory = directory
        self._wire = wire
        self._chance = random.Random(seed)
        self._doubt = doubt
        self._agents: dict[str, str] = {}
        self.doubts = 0
        """Calls whose outcome the model was told is unknown."""

    async def run(self, prompt: str) -> str:
        """Return the last text of a root with that prompt."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        for _ in range(80):
            text, calls, mine = await self._ask(messages)
            messages.append(mine)
            if not calls:
                return text
            results = []
            for call_id, name, arguments in calls:
                content, is_error = await self._perform(name, arguments)
                results.append((call_id, content, is_error))
            messages += self._results(results)
            if any(name == "submit_result" for _, name, _ in calls) and not results[-1][2]:
                return text
        return "never ended"

    async def _ask(
        self, messages: list[dict[str, Any]]
    ) -> tuple[str, list[tuple[str, str, dict[str, Any]]], dict[str, Any]]:
        names = ["bash", "read", "edit", "write", "spawn_agent", "wait_agents", "list_agents", "submit_result"]
        if self._wire == "anthropic":
            tools: list[dict[str, Any]] = [{"name": name, "input_schema": {"type": "object"}} for name in names]
            body = {"model": "m", "max_tokens": 1000, "tools": tools, "messages": messages}
            answer = (await self._client.post("/v1/messages", json=body)).raise_for_status().json()
            content = answer["content"]
            text = "".join(block["text"] for block in content if block["type"] == "text")
            calls = [(block["id"], block["name"], block["input"]) for block in content if block["type"] == "tool_use"]
            return text, calls, {"role": "assistant", "content": content}
        tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in names]
        body = {"model": "m", "tools": tools, "messages": messages}
        answer = (await self._client.post("/v1/chat/completions", json=body)).raise_for_status().json()
        message = {name: value for name, value in answer["choices"][0]["message"].items() if value is not None}
        raw = message.get("tool_calls", [])
        calls = [(one["id"], one["function"]["name"], json.loads(one["function"]["arguments"])) for one in raw]
        return message.get("content", ""), calls, message

    def _results(self, results: list[tuple[str, str, bool]]) -> list[dict[str, Any]]:
        if self._wire == "openai-chat":
            return [{"role": "tool", "tool_call_id": call_id, "content": content} for call_id, content, _ in results]
        blocks = [
            {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": is_error}
            for call_id, content, is_error in results
        ]
        return [{"role": "user", "content": blocks}]

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
