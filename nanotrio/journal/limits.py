"""What bounds a journal, and how it stands."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import LimitError
from ..records import Record

__all__ = ["JournalLimits", "JournalStatistics"]


class JournalLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a journal."""

    max_queued_records: int = 65_536
    """Records appended and not yet committed; ``room`` waits at this."""
    max_queued_bytes: int = 64 << 20
    """The same in bytes of facts."""
    max_batch_records: int = 8_192
    """A batch ends with the group that reaches this."""
    max_batch_bytes: int = 16 << 20
    max_record_bytes: int = 512 << 20
    """Facts of one record."""
    gather_seconds: float = 0.02
    """How long records gather while nobody waits for them."""
    heads_records: int = 20_000
    """Heads are written after so many records, so a reopen never replays many more."""
    heads_idle_seconds: float = 2.0
    """Heads are written when nothing was appended for so long."""
    heads_slice: int = 512
    """Heads in one batch."""
    max_contents: int = 4_096
    """Digests of shared content that are remembered."""

    def check_sizes(self, group: Sequence[Record]) -> None:
        """Refuse a group that holds a record larger than ``max_record_bytes``.

        Raises:
            LimitError: names the bound.
        """
        bound = self.max_record_bytes
        for record in group:
            if len(record.facts) > bound:
                raise LimitError(
                    f"a record of {len(record.facts)} bytes is above max_record_bytes ({bound}) of the journal",
                    bound="max_record_bytes",
                    value=bound,
                    holder="journal",
                )


class JournalStatistics(msgspec.Struct, frozen=True):
    """Counts, for people and benchmarks."""

    queued_records: int
    queued_bytes: int
    durable_seq: int
    heads_seq: int
    batches: int
    committed_bytes: int
    """Of facts, since this journal began."""
    trouble: str
