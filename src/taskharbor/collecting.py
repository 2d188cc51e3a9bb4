"""Collecting expired leases: taking them over and settling their jobs by the policy."""

from __future__ import annotations

import os
from collections.abc import Callable

import uuid_utils

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Answer, Claimed, Driver, ExpiredLease, Settled, Transition
from taskharbor.job import AttemptRecord, JobRecord, Options
from taskharbor.policy import DEFAULT_MAX_LOSSES, settle_loss
from taskharbor.recurring import armed, armed_blindly, decoded_options

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
        transitions, answers = await _settle_losses(driver, lease, max_losses)
        done = [
            (transition, answer)
            for transition, answer in zip(transitions, answers, strict=True)
            if answer.answer is Answer.DONE
        ]
        if report is not None and done:
            await _tell(driver, done, report)
        collected += done
    return collected


async def _settle_losses(
    driver: Driver, lease: ExpiredLease, max_losses: int
) -> tuple[list[Transition], list[Settled]]:
    losses: list[tuple[Transition, Claimed, list[AttemptRecord]]] = []
    for job in lease.jobs:
        rows = await driver.history(job.id, HISTORY_ROWS) if job.number > job.first_number else []
        losses.append((settle_loss(lease, job, rows, max_losses=max_losses), job, rows))
    transitions = [
        loss if job.due_at is None else _armed(loss, job, decoded_options(job), job.version, lease.now, rows)
        for loss, job, rows in losses
    ]
    answers = await driver.settle(transitions)
    for index, (loss, job, rows) in enumerate(losses):
        while answers[index].answer is Answer.CHANGED:  # its schedule: the next occurrence is computed anew
            [record] = await driver.get([job.id])
            if record is None:
                break
            now = answers[index].at
            options = record.options if record.unreadable_options is None else decoded_options(job)
            transitions[index] = _armed(loss, job, options, record.version, now, rows)
            [answers[index]] = await driver.settle([transitions[index]])
    return transitions, answers


def _armed(
    loss: Transition,
    job: Claimed,
    options: Options | None,
    version: int,
    now: int,
    rows: list[AttemptRecord],
) -> Transition:
    if options is None:
        return armed_blindly(loss, job, version, now)
    return armed(loss, job, options, version, now=now, rows=rows, copy_id=str(uuid_utils.uuid7()))


async def _tell(driver: Driver, done: list[tuple[Transition, Settled]], report: Report) -> None:
    records = await driver.get([transition.job_id for transition, _ in done])
    for (transition, settled), record in zip(done, records, strict=True):
        if record is not None:  # deleted since
            report(transition, settled, record)
