"""What every driver refuses in the same words."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ..errors import StoreDamagedError, StoreError
from ..records import Record

__all__ = ["check_acquirable", "check_open", "check_order", "damaged_record", "unreadable_head"]


def unreadable_head(url: str, error: Exception) -> StoreDamagedError:
    """Say that another version wrote a head, or that it is damaged, and what to do."""
    return StoreDamagedError(
        f"{url} has a head that this version cannot read ({error}); `nanotrio store repair {url}` makes heads anew"
    )


def damaged_record(url: str, what: str) -> StoreDamagedError:
    """Say ``what`` is wrong with a record of the store at ``url``, and what to do."""
    return StoreDamagedError(
        f"{what}; put a copy back, or save what can be read with `nanotrio store repair {shlex.quote(url)}`"
    )


def check_open(place: object, *, closed: bool) -> None:
    """Refuse to use the store at ``place`` once it was closed.

    Raises:
        StoreError: it was.
    """
    if closed:
        raise StoreError(f"{place} was closed; open it again")


def check_acquirable(place: object, *, read_only: bool, acquired: bool) -> None:
    """Refuse to acquire what was opened for reading, or is acquired by the same object.

    Raises:
        StoreError: it is.
    """
    if read_only:
        raise StoreError(f"{place} was opened for reading; open it for writing to run agents in it")
    if acquired:
        raise StoreError(f"{place} is acquired already; open it once more for a second owner")


def check_order(place: object, records: Sequence[Record], last_seq: int) -> None:
    """Refuse ``records`` that do not follow record ``last_seq``, the last one at ``place``.

    Raises:
        StoreDamagedError: they do not.
    """
    first, last = records[0].seq, records[-1].seq
    if first != last_seq + 1 or last - first + 1 != len(records):
        raise StoreDamagedError(
            f"records {first} to {last} ({len(records)} of them) do not follow record {last_seq} of {place}; "
            "this is a fault of nanotrio, please report it"
        )
