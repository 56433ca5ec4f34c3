"""Small brains for tests that need a model to do one thing."""

from __future__ import annotations

import re

from .conversation import Ask, Conversation, Fault, Reply

__all__ = ["SLEEP", "echo", "sleepers", "terminal", "word_counter"]

SLEEP = "sleep 600 | cat"


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
    """Agents that all run ``sleep 600 | cat``, for a prompt that says ``N groups of M sleepers`` or ``N sleepers``.

    The root only waits; each group spawns its sleepers and sleeps itself in the same step, and then waits for them.
    """
    prompt = conversation.prompt
    groups = re.search(r"(\d+) groups of (\d+) sleepers", prompt)
    wanted = re.search(r"(\d+) sleepers", prompt)
    sleep = (Ask("bash", {"command": SLEEP, "timeout": 600_000}),) if "Sleep now" in prompt else ()
    spawn: tuple[Ask, ...] = ()
    if groups:
        spawn = (_spawn("group", f"Sleep now, beside {groups[2]} sleepers.", int(groups[1])),)
    elif wanted:
        spawn = (_spawn("sleeper", "Sleep now.", int(wanted[1])),)
    calls = conversation.calls()
    if not calls:
        return Reply(calls=spawn + sleep)
    if spawn and not any(call.name == "wait_agents" for call, _ in calls):
        ids = sorted(set(re.findall(r"\b(?:group|sleeper)\.\d+", calls[0][1].text)))
        return Reply(calls=(Ask("wait_agents", {"ids": ids, "mode": "all"}),))
    return Reply(text="Everybody has slept.")


def _spawn(name: str, prompt: str, count: int) -> Ask:
    return Ask("spawn_agents", {"agents": [{"name": name, "prompt": prompt} for _ in range(count)]})


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
        return Reply(text="Sleeping.", calls=(Ask("bash", {"command": SLEEP, "timeout": 600_000}),))
    return Reply(text=f"You said: {asked}")


def word_counter(conversation: Conversation) -> Reply | Fault:
    """Count the words of ``story.txt`` with the tool that the README's example brings along."""
    last = conversation.said[-1]
    if last.results:
        return Reply(text=f"story.txt has {last.results[-1].text.strip()} words.")
    if "word_count" not in conversation.tools:
        return Reply(text="There is no tool to count with.")
    return Reply(calls=(Ask("word_count", {"path": "story.txt"}),))
