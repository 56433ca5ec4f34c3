"""The queue of records and its one writer."""

from .journal import Journal
from .limits import JournalLimits, JournalStatistics

__all__ = ["Journal", "JournalLimits", "JournalStatistics"]
