"""Stores: the port, its drivers, and their addresses."""

from .address import open_store, parse_url
from .memory import MemoryStore
from .owner import state_of, this_process
from .store import Batch, Owner, Store, StoreStatistics, Tenure
from .tail import Tail, read_tail

__all__ = [
    "Batch",
    "MemoryStore",
    "Owner",
    "Store",
    "StoreStatistics",
    "Tail",
    "Tenure",
    "open_store",
    "parse_url",
    "read_tail",
    "state_of",
    "this_process",
]
