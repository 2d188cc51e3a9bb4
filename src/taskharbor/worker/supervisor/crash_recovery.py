"""Settle the jobs of a dead child: those it had begun are lost, the others are released uncounted."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from taskharbor.drivers.base import Claimed, ClaimRequest, Driver, SettleAnswer, SettleResult, Transition
from taskharbor.drivers.capabilities import Steps
from taskharbor.records import AttemptStatus, Delivery
from taskharbor.rescue import Rescued, loss_history, settle_endings, with_failure_task
from taskharbor.rules.outcome import HandedBack, Interrupted
from taskharbor.rules.policy import (
    LOST_ALONE,
    LOST_ENDED,
    LOST_TOGETHER,
    Loss,
    Rules,
    settle_outcome,
    weigh_loss,
)
from taskharbor.telemetry.reports import Reports
from taskharbor.worker.supervisor.shared_memory import PublishedLease

BATCH_MAX = 500


class ProcessExit(Struct, frozen=True):
    """How a child exited, as the job history shows it."""

    worker: str
    how: str  # "was killed by SIGKILL"
    interrupted: bool = False  # it did not stop within the grace period: its jobs are released


class RecoveredJobs(Struct, frozen=True):
    """What became of a dead child's jobs."""

    lost: int = 0
    handed_back: int = 0
    suspects: bool = False  # at least one of them is a suspect now

    @property
    def jobs(self) -> int:
        return self.lost + self.handed_back


async def settle_orphaned_jobs(
    driver: Driver,
    leases: Sequence[tuple[str, PublishedLease]],
    process_exit: ProcessExit,
    *,
    lease: int,
    reports: Reports,
) -> RecoveredJobs:
    """Settle under each lease's token, as the child itself would. Safe to repeat after an outage."""
    rescued: list[Rescued] = []
    now = 0
    for token, published in leases:
        # A repeated claim returns the jobs of its token that are not settled yet, and claims no others.
        request = ClaimRequest(token, lease, 0, suspects=published.alone, supervised=True)
        claim = await driver.claim(request)
        now = claim.now
        rescued += [
            await _rescue(driver, token, published, job, process_exit, claim.max_losses) for job in claim.jobs
        ]
    done: list[tuple[Transition, SettleResult]] = []
    for first in range(0, len(rescued), BATCH_MAX):
        settled = await settle_endings(driver, rescued[first : first + BATCH_MAX], now, reports=reports)
        done += [pair for pair in settled if pair[1].answer is SettleAnswer.DONE]
    if done:
        await reports.losses(driver, done)
    lost = sum(transition.status is AttemptStatus.LOST for transition, _ in done)
    return RecoveredJobs(lost, len(done) - lost, any(transition.suspect for transition, _ in done))


async def _rescue(
    driver: Driver,
    token: str,
    lease: PublishedLease,
    job: Claimed,
    process_exit: ProcessExit,
    max_losses: int,
) -> Rescued:
    started_at = lease.begun.get(job.id)
    if started_at is None or process_exit.interrupted:
        outcome = HandedBack() if started_at is None else Interrupted()
        rules = Rules(None, delivery=job.delivery or Delivery.AT_LEAST_ONCE)
        transition, _ = settle_outcome(token, job, outcome, rules, started_at=started_at, suspect=lease.alone)
        # The process is dead: this settle must not be taken for a sign of its life.
        transition = replace(transition, worker=process_exit.worker)
        return await with_failure_task(driver, transition, job), job, []
    kind = LOST_ENDED if job.id in lease.ended else LOST_ALONE if lease.alone else LOST_TOGETHER
    loss = Loss(
        token,
        process_exit.worker,
        kind,
        f"lost: worker {process_exit.worker} {process_exit.how}",
        alone=lease.alone,
        started_at=started_at,
    )
    history, last_step = await loss_history(driver, Steps.offered_by(driver), job)
    transition = weigh_loss(loss, job, history, last_step=last_step, max_losses=max_losses)
    return await with_failure_task(driver, transition, job), job, history
