"""Collecting expired leases: taking them over and settling their jobs by the policy."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import uuid_utils

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Answer, Claimed, Driver, ExpiredLease, Settled, Transition
from taskharbor.job import AttemptRecord, Options, State
from taskharbor.policy import DEFAULT_MAX_LOSSES, settle_loss
from taskharbor.recurring import armed, armed_blindly, decoded_options

COLLECTOR_LEASE = 30 * MICROS_PER_SECOND
LEASES_MAX = 100  # in one go, so that nobody collects for ever
HISTORY_ROWS = 1_000  # of a job's attempts, to weigh its losses by: more than any limit asks for

Done = Sequence[tuple[Transition, Settled]]
Report = Callable[[Driver, Done], Awaitable[None]]
Ending = tuple[Transition, Claimed, list[AttemptRecord]]  # with the attempts of the job before it


async def collect_expired(
    driver: Driver,
    collector: str | None = None,
    *,
    max_losses: int = DEFAULT_MAX_LOSSES,
    report: Report | None = None,
) -> list[tuple[Transition, Settled]]:
    """Settle what expired leases held; each transition with the store's answer.

    `report` is told of those of a lease as soon as it is settled.
    """
    name = collector or f"collector-{os.getpid()}-{os.urandom(3).hex()}"
    collected: list[tuple[Transition, Settled]] = []
    for _ in range(LEASES_MAX):
        # Never a token that was used before: it would mean "the same lease again".
        lease = await driver.take_expired(f"{name}/c-{os.urandom(8).hex()}", COLLECTOR_LEASE)
        if lease is None:
            break
        transitions, answers = await _settle_losses(driver, lease, max_losses)
        done = [
            (transition, answer)
            for transition, answer in zip(transitions, answers, strict=True)
            if answer.answer is Answer.DONE
        ]
        if report is not None and done:
            await report(driver, done)
        collected += done
    return collected


async def _settle_losses(
    driver: Driver, lease: ExpiredLease, max_losses: int
) -> tuple[list[Transition], list[Settled]]:
    losses: list[Ending] = []
    for job in lease.jobs:
        rows, last_step = await past_of(driver, job)
        loss = settle_loss(lease, job, rows, last_step=last_step, max_losses=max_losses)
        losses.append((await with_failure_task(driver, loss, job), job, rows))
    return await settle_endings(driver, losses, lease.now)


async def settle_endings(
    driver: Driver, endings: Sequence[Ending], now: int
) -> tuple[list[Transition], list[Settled]]:
    """Settle attempts for a worker that cannot any more; those of recurring jobs with the occurrence that follows."""
    transitions = [
        ending if job.due_at is None else _armed(ending, job, decoded_options(job), job.version, now, rows)
        for ending, job, rows in endings
    ]
    answers = await driver.settle(transitions)
    for index, (ending, job, rows) in enumerate(endings):
        while answers[index].answer is Answer.CHANGED:  # its schedule: the next occurrence is computed anew
            [record] = await driver.get([job.id])
            if record is None:
                break
            now = answers[index].at
            options = record.options if record.unreadable_options is None else decoded_options(job)
            transitions[index] = _armed(ending, job, options, record.version, now, rows)
            [answers[index]] = await driver.settle([transitions[index]])
    return transitions, answers


def _armed(
    ending: Transition,
    job: Claimed,
    options: Options | None,
    version: int,
    now: int,
    rows: list[AttemptRecord],
) -> Transition:
    if options is None:
        return armed_blindly(ending, job, version, now)
    return armed(ending, job, options, version, now=now, rows=rows, copy_id=str(uuid_utils.uuid7()))


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
