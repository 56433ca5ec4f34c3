"""How often the repeated tests repeat: small fixed counts in ``make test``, the full ones in ``make soak``.

Each can be set alone by a variable of its name with ``NANOTRIO_`` before it, as in ``NANOTRIO_KILLS=1000 make soak``.
"""

from __future__ import annotations

import os

SOAK = os.environ.get("NANOTRIO_SOAK", "") not in {"", "0"}


def _count(name: str, small: int, full: int) -> int:
    return int(os.environ.get(f"NANOTRIO_{name}") or (full if SOAK else small))


EXAMPLES = _count("EXAMPLES", 50, 2_000)
"""Inputs that hypothesis tries for one property."""

KILLS = _count("KILLS", 8, 500)
"""SIGKILLs of a process that writes to a store."""

SWARM_KILLS = _count("SWARM_KILLS", 4, 500)
"""SIGKILLs of a swarm of 200 agents that is then resumed, on each kind of store."""

JOB_KILLS = _count("JOB_KILLS", 4, 50)
"""SIGKILLs of a whole job that is then continued."""

FAULTS = _count("FAULTS", 20, 500)
"""Seeds of injected faults."""

TERMINATIONS = _count("TERMINATIONS", 10, 100)
"""Commits in which the server ends the connection."""

SUBTREE = _count("SUBTREE", 20, 200)
"""Descendants with processes below a parent that is cancelled."""

SIBLINGS = _count("SIBLINGS", 2_000, 100_000)
"""Children of one agent that are cancelled at once."""

MAILS = _count("MAILS", 100, 1_000)
"""Mails sent to a child in each of its states."""

MAP_ITEMS = _count("MAP_ITEMS", 1_000, 100_000)
"""Items that the command maps in one run."""

MAP_KILLS = _count("MAP_KILLS", 4, 200)
"""SIGKILLs of a map of 300 items that the same command then goes on with."""

STALL_RECORDS = _count("STALL_RECORDS", 40_000, 400_000)
"""Records that a journal writes at full rate while the loop's stalls are looked at."""
