"""Workflows: storing a chord, and running it to its end, beside the same number of plain jobs in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.measures import Arena, Figures

MEMBERS = 10_000


def chord(arena: Arena) -> Figures:
    """A chord of no-op members and a finalizer that takes their results."""
    count = min(MEMBERS, arena.settings.jobs)
    stored = arena.contestant.store_chord(count)
    if stored is None:
        return {"chord_enqueue": None, "chord_drain": None}
    drained = arena.contestant.drain_chord(count)
    return {"chord_enqueue": count / stored, "chord_drain": None if drained is None else count / drained}
