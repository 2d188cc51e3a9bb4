"""Collecting expired leases: taking them over and settling their jobs by the policy."""

from __future__ import annotations

import itertools
import os

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Answer, Driver, Settled, Transition
from taskharbor.policy import DEFAULT_MAX_LOSSES, settle_loss

COLLECTOR_LEASE = 30 * MICROS_PER_SECOND
LEASES_MAX = 100  # in one go, so that nobody collects for ever
HISTORY_ROWS = 200

_serial = itertools.count(1)


async def collect_expired(
    driver: Driver, collector: str | None = None, *, max_losses: int = DEFAULT_MAX_LOSSES
) -> list[tuple[Transition, Settled]]:
    """Settle what expired leases held; each transition with the store's answer."""
    name = collector or f"collector-{os.getpid()}-{os.urandom(3).hex()}"
    collected: list[tuple[Transition, Settled]] = []
    for _ in range(LEASES_MAX):
        lease = await driver.take_expired(f"{name}/c{next(_serial)}", COLLECTOR_LEASE)
        if lease is None:
            break
        transitions = [
            settle_loss(
                lease,
                job,
                await driver.history(job.id, HISTORY_ROWS) if job.number > job.first_number else [],
                max_losses=max_losses,
            )
            for job in lease.jobs
        ]
        answers = await driver.settle(transitions)
        collected += [
            (transition, answer)
            for transition, answer in zip(transitions, answers, strict=True)
            if answer.answer is Answer.DONE
        ]
    return collected
