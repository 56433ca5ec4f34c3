"""Which model a run uses where nobody says."""

from __future__ import annotations

from collections.abc import Mapping

from .exits import CommandError

__all__ = ["chosen_model"]

_DEFAULTS = (("ANTHROPIC_API_KEY", "anthropic/claude-sonnet-4-5"), ("OPENAI_API_KEY", "openai-chat/gpt-4.1"))


def chosen_model(given: str | None, environment: Mapping[str, str]) -> str:
    """Return the model that was given, that the environment names, or that a key in it is good for.

    Raises:
        CommandError: there is none of these; says what to set.
    """
    model = given or environment.get("NANOTRIO_MODEL", "")
    if model:
        return model
    for key, name in _DEFAULTS:
        if environment.get(key):
            return name
    raise CommandError(
        "no model is chosen and no key is set: set ANTHROPIC_API_KEY or OPENAI_API_KEY, or name a model with --model "
        "or NANOTRIO_MODEL (scripted/echo needs no key)"
    )
