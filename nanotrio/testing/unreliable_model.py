"""A model that fails, is cut off and dawdles, by a seed, around a real one."""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from ..errors import ModelError
from ..models import Codec, Delta, Model, Price, Reply

__all__ = ["UnreliableModel"]


class UnreliableModel:
    """Passes attempts on to ``model``, but for some of them. Which ones depends on the seed and their order alone.

    Args:
        model: the model that answers; name, price and form are its own.
        seed: what is drawn from.
        fail: the share of attempts that fail before anything is sent.
        cut: the share whose reply is cut off after it was made and paid for: the error carries its usage.
        delay_seconds: each attempt waits for up to so long, on Trio's clock.

    Both kinds of failure are transient, so the swarm tries again.
    """

    __slots__ = ("_chance", "_cut", "_delay_seconds", "_fail", "_model", "codec", "name", "price")

    def __init__(
        self, model: Model, seed: int, *, fail: float = 0.0, cut: float = 0.0, delay_seconds: float = 0.0
    ) -> None:
        self.name = model.name
        self.price: Price | None = model.price
        self.codec: Codec = model.codec
        self._model = model
        self._chance = random.Random(seed)  # noqa: S311 - the same faults again are the point
        self._fail = fail
        self._cut = cut
        self._delay_seconds = delay_seconds

    async def attempt(self, body: bytes, emit: Callable[[Delta], None] | None, *, idle_seconds: float) -> Reply:
        """Make an attempt, or fail; see ``Model.attempt``."""
        luck, delay = self._chance.random(), self._chance.random() * self._delay_seconds
        await trio.sleep(delay)
        if luck < self._fail:
            raise ModelError(f"{self.name} failed on purpose", kind="transient")
        reply = await self._model.attempt(body, emit, idle_seconds=idle_seconds)
        if luck < self._fail + self._cut:
            raise ModelError(f"the reply of {self.name} was cut off on purpose", kind="transient", usage=reply.usage)
        return reply
