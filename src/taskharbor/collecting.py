"""Collecting expired leases: taking them over and settling their jobs by the policy."""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Answer, Claimed, Driver, ExpiredLease, Settled, Transition
from taskharbor.job import AttemptRecord, JobRecord, Options, State
from taskharbor.policy import DEFAULT_MAX_LOSSES, settle_loss

COLLECTOR_LEASE = 30 * MICROS_PER_SECOND
LEASES_MAX = 100  # in one go, so that nobody collects for ever
HISTORY_ROWS = 1_000  # of a job's attempts, to weigh its losses by: more than any limit asks for

Report = Callable[[Transition, Settled, JobRecord], None]


async def collect_expired(
    driver: Driver,
    collector: str | None = None,
    *,
    max_losses: int = DEFAULT_MAX_LOSSES,
    report: Report | None = None,
) -> list[tuple[Transition, Settled]]:
    """Settle what expired leases held; each transition with the store's answer.

    `report` is told of each of them, with the job as it stands afterwards, as soon as its lease is settled.
    """
    name = collector or f"collector-{os.getpid()}-{os.urandom(3).hex()}"
    collected: list[tuple[Transition, Settled]] = []
    for _ in range(LEASES_MAX):
        # Never a token that was used before: it would mean "the same lease again".
        lease = await driver.take_expired(f"{name}/c-{os.urandom(8).hex()}", COLLECTOR_LEASE)
        if lease is None:
            break
        transitions = [await _loss(driver, lease, job, max_losses) for job in lease.jobs]
        answers = await driver.settle(transitions)
        done = [
            (transition, answer)
            for transition, answer in zip(transitions, answers, strict=True)
            if answer.answer is Answer.DONE
        ]
        if report is not None and done:
            await _tell(driver, done, report)
        collected += done
    return collected


async def _loss(driver: Driver, lease: ExpiredLease, job: Claimed, max_losses: int) -> Transition:
    history, last_step = await past_of(driver, job)
    transition = settle_loss(lease, job, history, last_step=last_step, max_losses=max_losses)
    return await with_failure_task(driver, transition, job)


async def past_of(driver: Driver, job: Claimed) -> tuple[list[AttemptRecord], int]:
    """What a loss is weighed by: the attempts before this one, and the one that stored the latest durable step."""
    if job.number == job.first_number:  # nothing of this run is behind it
        return [], 0
    steps = await driver.steps(job.id)
    last_step = max((step.number for step in steps.values()), default=0)
    return await driver.history(job.id, HISTORY_ROWS), last_step


async def with_failure_task(driver: Driver, transition: Transition, job: Claimed) -> Transition:
    """If this is the death of a workflow's member: with the task that the workflow runs then."""
    if transition.to is not State.DEAD or job.options is None or '"failure_task"' not in job.options:
        return transition
    from taskharbor.workflow.failure import FailureTasks

    try:
        options = msgspec.json.decode(job.options, type=Options)
    except msgspec.MsgspecError:  # of a newer version: its own workers know better
        return transition
    return await FailureTasks(driver).added(transition, job, options)


async def _tell(driver: Driver, done: list[tuple[Transition, Settled]], report: Report) -> None:
    records = await driver.get([transition.job_id for transition, _ in done])
    for (transition, settled), record in zip(done, records, strict=True):
        if record is not None:  # deleted since
            report(transition, settled, record)
