"""What can go wrong, and whose fault it is.

::

    NanotrioError
    ├── UsageError            the caller: a value, name or call that cannot be used
    │   ├── UnknownModelError     a model name nobody serves
    │   ├── UnknownToolError      a tool name nobody registered
    │   ├── UnknownAgentError     no such agent, or a name that fits several
    │   └── ClosedError           the agent or swarm was closed before the call
    ├── LimitError            a bound was reached; names the bound and its holder
    │   └── BudgetError           the bound is money
    ├── ModelError            the model's server, or the way to it
    ├── ToolError             a tool; its text goes to the model as an error result
    ├── RecordError           bytes that are not a record this version can read
    └── StoreError            the store, its file or its server
        ├── NotAStoreError        something else lives at that address
        ├── NewerStoreError       written by a newer nanotrio
        ├── StoreOwnedError       another live process owns it
        ├── FencedError           another process took it over from us
        └── StoreDamagedError     it cannot be read back whole

Each message is one line for a person: what happened, to what, and what to do next.
"""

from __future__ import annotations

from typing import Literal

__all__ = [
    "TRANSIENT_KINDS",
    "BudgetError",
    "ClosedError",
    "FencedError",
    "LimitError",
    "ModelError",
    "ModelErrorKind",
    "NanotrioError",
    "NewerStoreError",
    "NotAStoreError",
    "RecordError",
    "StoreDamagedError",
    "StoreError",
    "StoreOwnedError",
    "ToolError",
    "UnknownAgentError",
    "UnknownModelError",
    "UnknownToolError",
    "UsageError",
]


class NanotrioError(Exception):
    """The base of every error that nanotrio raises on purpose."""


class UsageError(NanotrioError, ValueError):
    """You gave something that cannot be used; nothing was written."""


class UnknownModelError(UsageError):
    """No provider serves a model of that name."""


class UnknownToolError(UsageError):
    """No tool of that name is registered with the swarm."""


class UnknownAgentError(UsageError):
    """No agent answers to that id or name, or more than one does."""


class ClosedError(NanotrioError):
    """You used an agent or a swarm after it was closed."""


class LimitError(NanotrioError):
    """A bound of ``Limits`` was reached.

    Attributes:
        bound: the name of the bound, as in ``Limits`` (``"max_depth"``).
        value: its value.
        holder: the agent, or the part of nanotrio, that the bound belongs to.
    """

    def __init__(self, message: str, *, bound: str, value: float, holder: str) -> None:
        super().__init__(message)
        self.bound = bound
        self.value = value
        self.holder = holder


class BudgetError(LimitError):
    """A cap on money was reached; ``holder`` is the ancestor whose cap held."""


ModelErrorKind = Literal[
    "transient",  # connection lost, cut stream, HTTP 5xx, 408, 409: try again
    "rate_limited",  # HTTP 429, 529: try again, not before retry_after_seconds
    "quota",  # the account has no money or quota left: trying again is useless
    "auth",  # no key, or the key was refused
    "not_found",  # the server does not know the model or the path
    "too_long",  # the request does not fit the model's window
    "rejected",  # the server found the request invalid
    "unreachable",  # no connection to the address at all: tried again a few times
]


TRANSIENT_KINDS: frozenset[str] = frozenset(("transient", "rate_limited", "unreachable"))
"""Kinds of failure after which another attempt may succeed."""


class ModelError(NanotrioError):
    """One attempt of a model call failed.

    Attributes:
        kind: what to do about it, see ``ModelErrorKind``.
        status: the HTTP status, or 0 where there was none.
        retry_after_seconds: the server's wish, or None where it gave none.
        usage: tokens that were billed before the failure, a ``messages.Usage`` or None.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: ModelErrorKind,
        status: int = 0,
        retry_after_seconds: float | None = None,
        usage: object = None,
    ) -> None:
        super().__init__(message)
        self.kind: ModelErrorKind = kind
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.usage = usage

    @property
    def is_transient(self) -> bool:
        """Whether another attempt may succeed."""
        return self.kind in TRANSIENT_KINDS


class ToolError(NanotrioError):
    """A tool failed in a way the model should read; raise it from a tool with a plain sentence."""


class RecordError(NanotrioError):
    """Bytes that are not a record, or a fact of a kind this version does not know."""


class StoreError(NanotrioError):
    """The store could not do what was asked."""


class NotAStoreError(StoreError):
    """The address holds something that nanotrio did not write."""


class NewerStoreError(StoreError):
    """The store was written by a newer version of nanotrio; nothing was changed."""


class StoreOwnedError(StoreError):
    """Another live process owns the store.

    Attributes:
        pid: its process id.
        state: ``"running"``, ``"stopped"`` or ``"elsewhere"`` (another machine).
    """

    def __init__(self, message: str, *, pid: int, state: str) -> None:
        super().__init__(message)
        self.pid = pid
        self.state = state


class FencedError(StoreError):
    """Another process took the store over; nothing more can be written from here."""


class StoreDamagedError(StoreError):
    """Part of the store cannot be read back; the message says where and how to repair it."""
