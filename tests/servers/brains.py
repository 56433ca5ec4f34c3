"""Small brains for tests that need a model to do one thing."""

from __future__ import annotations

import re

from .conversation import Ask, Conversation, Fault, Reply

__all__ = ["echo", "sleepers", "terminal"]


def echo(conversation: Conversation) -> Reply | Fault:
    """Say back the last user text; words in it ask for more.

    ``use bash: COMMAND`` calls bash with the command and then says its output. ``think`` puts signed reasoning first.
    ``fail once STATUS`` answers an HTTP error the first time.
    """
    last = conversation.said[-1]
    thinking = "Let me see." if "think" in conversation.prompt else ""
    if last.results:
        return Reply(text=f"It said: {last.results[-1].text.strip()}", thinking=thinking)
    failing = re.search(r"fail once (\d+)", last.text)
    if failing and conversation.attempt == 0:
        return Fault(kind="status", status=int(failing[1]))
    wanted = re.search(r"use bash: (.+)", last.text)
    if wanted:
        return Reply(text="Running it.", thinking=thinking, calls=(Ask("bash", {"command": wanted[1]}),))
    return Reply(text=f"You said: {last.text}", thinking=thinking)


def sleepers(conversation: Conversation) -> Reply | Fault:
    """A parent that spawns ``N sleepers``, each of which runs ``sleep 600 | cat``, and waits for them all."""
    if "Sleep now" in conversation.prompt:
        return Reply(calls=(Ask("bash", {"command": "sleep 600 | cat", "timeout": 600_000}),))
    wanted = re.search(r"(\d+) sleepers", conversation.prompt)
    calls = conversation.calls()
    if wanted and not calls:
        agents = [{"name": "sleeper", "prompt": "Sleep now."} for _ in range(int(wanted[1]))]
        return Reply(calls=(Ask("spawn_agents", {"agents": agents}),))
    if len(calls) == 1:
        ids = sorted(set(re.findall(r"\bsleeper\.\d+", calls[0][1].text)))
        return Reply(calls=(Ask("wait_agents", {"ids": ids, "mode": "all"}),))
    return Reply(text="Everybody has slept.")


def terminal(conversation: Conversation) -> Reply | Fault:
    """What the REPL's test talks to: a slow answer to ``stream``, a long ``bash`` for ``sleep``, else an echo."""
    last = conversation.said[-1]
    asked = last.texts[-1] if last.texts else ""
    if last.results and not asked:
        return Reply(text=f"It said: {last.results[-1].text.strip()[:60]}")
    if "stream" in asked:
        words = " ".join(f"word{number}" for number in range(40))
        return Reply(text=f"{words} finished-streaming", pause_seconds=0.02, piece_characters=12)
    if "sleep" in asked:
        return Reply(text="Sleeping.", calls=(Ask("bash", {"command": "sleep 600 | cat", "timeout": 600_000}),))
    return Reply(text=f"You said: {asked}")
