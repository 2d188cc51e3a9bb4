"""How many slots a queue needs, so that no ready job waits for longer than an age."""

from __future__ import annotations

import math

from msgspec import Struct

# Of the age: a backlog that is nearly or already too old is drained within this. Less would ask for too many slots.
DRAIN_SHARE_MIN = 0.25


class Load(Struct, frozen=True):
    """What is known of a queue's work."""

    ready: int = 0
    running: int = 0
    oldest_seconds: float = 0.0  # how long the oldest ready job has been due
    arrivals_per_second: float = 0.0  # of attempts: first claims and retries
    mean_seconds: float | None = None  # of an attempt; None: no attempt has ended lately
    is_paused: bool = False


def slots_wanted(load: Load, age_seconds: float) -> int:
    """Return how many slots keep the oldest ready job younger than `age_seconds`.

    By Little's law, `arrivals * duration` attempts run at once if nothing has to wait. The ready jobs come on top:
    their work, spread over what is left of the age. Never fewer than what is running: taking those slots away would
    interrupt it. A paused queue needs no more than that.
    """
    least = load.running if load.is_paused else max(load.running, min(load.ready, 1))
    if load.is_paused or load.mean_seconds is None:
        return least
    drain_seconds = max(age_seconds - load.oldest_seconds, DRAIN_SHARE_MIN * age_seconds)
    attempts_at_once = load.mean_seconds * (load.arrivals_per_second + load.ready / drain_seconds)
    return max(least, math.ceil(round(attempts_at_once, 6)))
