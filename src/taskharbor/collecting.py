"""Collecting expired leases: taking them over and settling their jobs by the policy."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence

import msgspec
import uuid_utils

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import Answer, Claimed, Driver, ExpiredLease, Extension, Settled, Transition
from taskharbor.job import AttemptRecord, Options, State
from taskharbor.policy import DEFAULT_MAX_LOSSES, settle_loss
from taskharbor.recurring import armed, armed_blindly, decoded_options

# How often a worker looks for expired leases, and how long a collector may go without a sign of life before another one
# takes its lease over. Two looks and that lease are less than two seconds: so soon after the lease of their worker are
# jobs collected whose first collector died as well.
COLLECT_SECONDS = 0.6
COLLECTOR_LEASE = MICROS_PER_SECOND // 2
COLLECTOR_LEASE_MAX = 30 * MICROS_PER_SECOND
LEASES_MAX = 100  # in one go, so that nobody collects for ever
JOBS_AT_ONCE = 200  # settled together: a collector that loses its lease has got on by this much
HISTORY_ROWS = 1_000  # of a job's attempts, to weigh its losses by: more than any limit asks for

Done = Sequence[tuple[Transition, Settled]]
Report = Callable[[Driver, Done], Awaitable[None]]
Ending = tuple[Transition, Claimed, list[AttemptRecord]]  # with the attempts of the job before it


class Collector:
    """Settles what expired leases held, each under a short lease of its own.

    A collector that dies is collected as soon as that lease is over. One that is only slow extends it, and takes a
    longer one the next time if it was too late even so: then it gets to an end however slow the store is.
    """

    def __init__(
        self,
        driver: Driver,
        name: str | None = None,
        *,
        max_losses: int = DEFAULT_MAX_LOSSES,
        report: Report | None = None,
    ) -> None:
        self._driver = driver
        self._name = name or f"collector-{os.getpid()}-{os.urandom(3).hex()}"
        self._max_losses = max_losses
        self._report = report  # told of the jobs of a lease as soon as they are settled
        self._duration = COLLECTOR_LEASE
        self._held_since = 0.0

    async def collect(self) -> list[tuple[Transition, Settled]]:
        """Collect what has expired; each transition that was settled, with the store's answer."""
        collected: list[tuple[Transition, Settled]] = []
        for _ in range(LEASES_MAX):
            self._held_since = self._driver.clock.monotonic()
            # Never a token that was used before: it would mean "the same lease again".
            token = f"{self._name}/c-{os.urandom(8).hex()}"
            lease = await self._driver.take_expired(token, self._duration)
            if lease is None:
                break
            done, kept = await self._settle(lease)
            collected += done
            self._duration = COLLECTOR_LEASE if kept else min(2 * self._duration, COLLECTOR_LEASE_MAX)
        return collected

    async def _settle(self, lease: ExpiredLease) -> tuple[Done, bool]:
        """What was settled, and whether the lease was kept until the last of its jobs was."""
        collected: list[tuple[Transition, Settled]] = []
        for first in range(0, len(lease.jobs), JOBS_AT_ONCE):
            endings: list[Ending] = []
            for job in lease.jobs[first : first + JOBS_AT_ONCE]:
                if not await self._keep(lease):
                    return collected, False
                endings.append(await self._ending(lease, job))
            transitions, answers = await settle_endings(self._driver, endings, lease.now)
            pairs = list(zip(transitions, answers, strict=True))
            done = [pair for pair in pairs if pair[1].answer is Answer.DONE]
            if self._report is not None and done:
                await self._report(self._driver, done)
            collected += done
            if any(answer.answer in (Answer.LEASE_EXPIRED, Answer.LEASE_MISMATCH) for answer in answers):
                return collected, False
        return collected, True

    async def _keep(self, lease: ExpiredLease) -> bool:
        """Extend the lease when a third of its time is over; whether it is still this collector's."""
        now = self._driver.clock.monotonic()
        if (now - self._held_since) * MICROS_PER_SECOND < self._duration / 3:
            return True
        self._held_since = now
        extension = Extension(lease.token, self._duration, tuple(lease.running.items()))
        heartbeat = await self._driver.extend([extension])
        return heartbeat.leases[0].answer is Answer.DONE

    async def _ending(self, lease: ExpiredLease, job: Claimed) -> Ending:
        rows, last_step = await past_of(self._driver, job)
        loss = settle_loss(lease, job, rows, last_step=last_step, max_losses=self._max_losses)
        return await with_failure_task(self._driver, loss, job), job, rows


async def collect_expired(
    driver: Driver, *, max_losses: int = DEFAULT_MAX_LOSSES, report: Report | None = None
) -> list[tuple[Transition, Settled]]:
    """Settle what expired leases held; each transition that was settled, with the store's answer."""
    return await Collector(driver, max_losses=max_losses, report=report).collect()


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
