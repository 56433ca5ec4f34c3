"""Costs, as people read them."""

from __future__ import annotations

from nanotrio.swarm.outcome import AgentView

__all__ = ["cost_text", "view_cost"]


def cost_text(cost_nano: int, *, unpriced: int = 0, uncertain_nano: int = 0) -> str:
    """Return a cost in dollars; with model calls of unknown price it is never shown as a plain sum.

    ``$0.0123``; ``unknown`` where no call had a price; ``$0.0123 + unknown`` where some had; ``(+ up to $0.0100)`` for
    calls that a crash cut off.
    """
    sum_text = f"${cost_nano / 1e9:.4f}"
    if unpriced:
        sum_text = f"{sum_text} + unknown" if cost_nano else "unknown"
    if uncertain_nano:
        sum_text += f" (+ up to ${uncertain_nano / 1e9:.4f})"
    return sum_text


def view_cost(view: AgentView) -> str:
    """Return what an agent and its ended descendants cost."""
    return cost_text(view.spent_nano, unpriced=view.unpriced, uncertain_nano=view.uncertain_nano)
