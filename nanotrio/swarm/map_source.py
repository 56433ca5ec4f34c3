"""Where the items of a map come from: any iterable, read as far ahead as was asked and no further."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from typing import Any, Final

import trio

__all__ = ["NOTHING_YET", "NO_MORE", "Source"]

_AHEAD = 64
"""Items of an asynchronous iterable that are read before they are asked for."""
_CLOSE_SECONDS = 5.0

NOTHING_YET: Final = object()
NO_MORE: Final = object()


class Source:
    """Items, taken one by one without waiting.

    An asynchronous iterable is read by a task of its own in ``nursery``, which calls ``news`` whenever there is more;
    ``aclose`` ends that task. What the iterable raises ends the items, and stands in ``error``; so does ``fail``.
    """

    def __init__(
        self, items: Iterable[Any] | AsyncIterable[Any], nursery: trio.Nursery, news: Callable[[], None]
    ) -> None:
        self.error: Exception | None = None
        self.is_over = False
        self._news = news
        self._scope = trio.CancelScope()
        self._done = trio.Event()
        self._items: Iterator[Any] | None = None
        if isinstance(items, AsyncIterable):
            self._send, self._receive = trio.open_memory_channel[Any](_AHEAD)
            nursery.start_soon(self._read, items)
        else:
            self._items = iter(items)
            self._done.set()

    def take(self) -> Any:
        """Return the next item, ``NOTHING_YET``, or ``NO_MORE``."""
        if self.is_over:
            return NO_MORE
        try:
            return self._receive.receive_nowait() if self._items is None else next(self._items)
        except trio.WouldBlock:
            return NOTHING_YET
        except (StopIteration, trio.EndOfChannel):
            self.is_over = True
        except Exception as error:  # noqa: BLE001 - told where the items end
            self.fail(error)
        return NO_MORE

    def fail(self, error: Exception) -> None:
        """Take no more items, because of ``error``."""
        self.error, self.is_over = error, True

    async def _read(self, items: AsyncIterable[Any]) -> None:
        iterator = aiter(items)
        try:
            with self._scope:
                while True:
                    item = await anext(iterator)
                    await self._send.send(item)
                    self._news()
        except StopAsyncIteration:
            pass
        except Exception as error:  # noqa: BLE001 - the items' own, told where they end
            self.error = error
        finally:
            self._send.close()
            with trio.move_on_after(_CLOSE_SECONDS, shield=True):
                if (close := getattr(iterator, "aclose", None)) is not None:
                    await close()
            self._done.set()
            self._news()

    async def aclose(self) -> None:
        """Read no more. Checkpoints."""
        self._scope.cancel()
        self.is_over = True
        with trio.CancelScope(shield=True):
            await self._done.wait()
        await trio.lowlevel.checkpoint()
