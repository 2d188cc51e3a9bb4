"""Settling what a dead child has left behind: what it had begun is lost, the rest is handed back uncounted."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from msgspec import Struct

from taskharbor.drivers.base import Claimed, ClaimRequest, Driver, SettleAnswer, SettleResult, Transition
from taskharbor.records import AttemptStatus, Delivery
from taskharbor.rescue import Report, Rescued, loss_history, settle_endings, with_failure_task
from taskharbor.rules.outcome import HandedBack, Interrupted
from taskharbor.rules.policy import (
    DEFAULT_MAX_LOSSES,
    LOST_ALONE,
    LOST_ENDED,
    LOST_TOGETHER,
    Loss,
    Rules,
    settle_outcome,
    weigh_loss,
)
from taskharbor.worker.supervisor.shared_memory import Held

BATCH_MAX = 500


class ProcessExit(Struct, frozen=True):
    """The end of a child, as history tells it."""

    worker: str
    how: str  # "was ended by SIGKILL"
    interrupted: bool = False  # it did not stop within the grace of a shutdown: its jobs are released


class RecoveredJobs(Struct, frozen=True):
    """What became of a dead child's jobs."""

    lost: int = 0
    handed_back: int = 0
    suspects: bool = False  # somebody should execute one alone

    @property
    def jobs(self) -> int:
        return self.lost + self.handed_back


def describe(status: int) -> str:
    """An exit status as `wait` gives it, in words."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


async def settle_orphaned_jobs(
    driver: Driver,
    left: Sequence[tuple[str, Held]],
    death: ProcessExit,
    *,
    lease: int,
    max_losses: int = DEFAULT_MAX_LOSSES,
    report: Report,
) -> RecoveredJobs:
    """Each lease by its token, as if the child itself did it. Repeated after an outage, it finishes the rest."""
    endings: list[Rescued] = []
    now = 0
    for token, held in left:
        # Repeated, a claim gives what is not settled yet, and of one that found nothing there is nothing.
        request = ClaimRequest(token, lease, 0, suspects=held.alone, supervised=True)
        claim = await driver.claim(request)
        now = claim.now
        endings += [await _ending(driver, token, held, job, death, max_losses) for job in claim.jobs]
    done: list[tuple[Transition, SettleResult]] = []
    for first in range(0, len(endings), BATCH_MAX):
        settled = await settle_endings(driver, endings[first : first + BATCH_MAX], now)
        done += [pair for pair in settled if pair[1].answer is SettleAnswer.DONE]
    if done:
        await report(driver, done)
    lost = sum(transition.status is AttemptStatus.LOST for transition, _ in done)
    return RecoveredJobs(lost, len(done) - lost, any(transition.suspect for transition, _ in done))


async def _ending(
    driver: Driver, token: str, held: Held, job: Claimed, death: ProcessExit, max_losses: int
) -> Rescued:
    started_at = held.begun.get(job.id)
    if started_at is None or death.interrupted:
        outcome = HandedBack() if started_at is None else Interrupted()
        rules = Rules(None, delivery=job.delivery or Delivery.AT_LEAST_ONCE)
        transition, _ = settle_outcome(token, job, outcome, rules, started_at=started_at, suspect=held.alone)
        return await with_failure_task(driver, transition, job), job, []
    kind = LOST_ENDED if job.id in held.ended else LOST_ALONE if held.alone else LOST_TOGETHER
    loss = Loss(
        token,
        death.worker,
        kind,
        f"lost: worker {death.worker} {death.how}",
        alone=held.alone,
        started_at=started_at,
    )
    history, last_step = await loss_history(driver, job)
    transition = weigh_loss(loss, job, history, last_step=last_step, max_losses=max_losses)
    return await with_failure_task(driver, transition, job), job, history
