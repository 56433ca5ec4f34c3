"""Stores: the port, its drivers, and their addresses."""

from .address import open_store, parse_url
from .answer import Answer
from .births import Births
from .care import CheckReport, CopyReport, RepairReport, StoreCare, StoreSummary, beside
from .memory import MemoryStore
from .owner import state_of, this_process
from .pruning import PruneReport
from .query import query
from .store import Batch, Owner, Store, StoreStatistics, Tenure
from .tail import Tail, read_tail

__all__ = [
    "Answer",
    "Batch",
    "Births",
    "CheckReport",
    "CopyReport",
    "MemoryStore",
    "Owner",
    "PruneReport",
    "RepairReport",
    "Store",
    "StoreCare",
    "StoreStatistics",
    "StoreSummary",
    "Tail",
    "Tenure",
    "beside",
    "open_store",
    "parse_url",
    "query",
    "read_tail",
    "state_of",
    "this_process",
]
