"""What a model server remembers of its own answers, so that it can tell when history was altered."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import msgspec

from .conversation import Thought, WireRefusal

__all__ = ["Issued", "Memory"]


class Issued(msgspec.Struct, frozen=True):
    """A call this server asked for; ``arguments`` is None where they were malformed on purpose."""

    name: str
    arguments: dict[str, Any] | None
    model: str
    thinking: bool
    """Whether signed reasoning came before it."""


class Memory:
    """Calls issued and reasoning signed.

    A signature is computed from the model and the text, so it can be verified after a restart of the server too; the
    calls are forgotten then, and only what the conversation itself shows can be checked.
    """

    def __init__(self, secret: bytes = b"nanotrio test server") -> None:
        self._secret = secret
        self._calls: dict[str, Issued] = {}

    def sign(self, model: str, text: str) -> str:
        """Return the proof that ``model`` thought ``text``."""
        digest = hmac.digest(self._secret, f"{model}\0{text}".encode(), hashlib.sha256)
        return base64.b64encode(digest).decode()

    def issue(self, call_id: str, issued: Issued) -> None:
        """Remember a call that goes out."""
        self._calls[call_id] = issued

    def check_thought(self, model: str, thought: Thought, where: str) -> None:
        """Refuse reasoning that was altered, never issued, or issued by another model."""
        if not hmac.compare_digest(thought.signature, self.sign(model, thought.text)):
            raise WireRefusal(f"{where}: Invalid `signature` in `thinking` block")

    def check_call(self, call_id: str, name: str, arguments: dict[str, Any], declared: set[str], where: str) -> None:
        """Refuse a call that was altered, or that names a tool which is not declared."""
        issued = self._calls.get(call_id)
        if issued is None:
            if name not in declared:
                raise WireRefusal(f"{where}: tool {name!r} is not among the tools of this request")
            return
        if issued.name != name:
            raise WireRefusal(f"{where}: call {call_id} was of {issued.name!r}, not of {name!r}")
        if issued.arguments is not None and issued.arguments != arguments:
            raise WireRefusal(f"{where}: the arguments of call {call_id} were altered")

    def expects_thinking(self, call_id: str, model: str) -> bool:
        """Whether the reply that held this call began with reasoning signed for ``model``."""
        issued = self._calls.get(call_id)
        return issued is not None and issued.thinking and issued.model == model
