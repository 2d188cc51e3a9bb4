"""Collecting expired leases: taking them over and settling their jobs by the policy."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import uuid_utils

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import (
    Claimed,
    Driver,
    ExpiredLease,
    Extension,
    SettleAnswer,
    SettleResult,
    Transition,
)
from taskharbor.drivers.capabilities import Steps, Workflows
from taskharbor.own_tasks import finished
from taskharbor.records import AttemptRecord, Options, State, StepRecord
from taskharbor.rules.policy import settle_loss
from taskharbor.rules.recurrence import armed, armed_blindly, decoded_options
from taskharbor.settle_batch import REFUSALS, is_outage, log_bug, log_refusal, settle_apart, without_content

if TYPE_CHECKING:
    from taskharbor.telemetry.reports import Reports

logger = logging.getLogger("taskharbor.worker")

# How often a worker looks for expired leases, and how long a collector may go without a sign of life before another one
# takes its lease over. Two looks and that lease are less than two seconds: so soon after the lease of their worker are
# jobs collected whose first collector died as well.
COLLECT_SECONDS = 0.6
IDLE_COLLECT_SECONDS = 0.9  # … where there was no lease at all: one of a second is seen before it expires
COLLECTOR_LEASE = MICROS_PER_SECOND // 2
COLLECTOR_LEASE_MAX = 30 * MICROS_PER_SECOND
PUT_OFF_MAX = 300 * MICROS_PER_SECOND  # between two tries to settle what a bug of ours keeps in its lease
LEASES_MAX = 100  # in one go, so that every collection ends
JOBS_AT_ONCE = 200  # settled together: a collector that loses its lease has got on by this much
REPORT_SECONDS = (
    0.5  # that a collector which is stopped waits for the store's answer, to report what it has settled
)
HISTORY_ROWS = 1_000  # of a job's attempts, to weigh its losses by: more than any limit asks for

Done = Sequence[tuple[Transition, SettleResult]]
Rescued = tuple[Transition, Claimed, list[AttemptRecord]]  # with the attempts of the job before it


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
        reports: Reports | None = None,
    ) -> None:
        self._driver = driver
        self._name = name or f"collector-{os.getpid()}-{os.urandom(3).hex()}"
        self._reports = reports  # told of the jobs of a lease as soon as they are settled
        self._duration = COLLECTOR_LEASE
        self._held_since = 0.0

    async def collect(self) -> list[tuple[Transition, SettleResult]]:
        """Collect what has expired; each transition that was settled, with the store's answer."""
        collected: list[tuple[Transition, SettleResult]] = []
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
        collected: list[tuple[Transition, SettleResult]] = []
        answered = 0
        for first in range(0, len(lease.jobs), JOBS_AT_ONCE):
            endings: list[Rescued] = []
            for job in lease.jobs[first : first + JOBS_AT_ONCE]:
                if not await self._keep(lease):
                    return collected, False
                endings += await self._ending(lease, job)
            settled = await finished(self._settle_endings(endings, lease.now), REPORT_SECONDS)
            answered += len(settled)
            collected += [pair for pair in settled if pair[1].answer is SettleAnswer.DONE]
            if any(
                pair[1].answer in (SettleAnswer.LEASE_EXPIRED, SettleAnswer.LEASE_MISMATCH)
                for pair in settled
            ):
                return collected, False
        if answered < len(lease.jobs):
            await self._put_off(lease)
        return collected, True

    async def _settle_endings(self, endings: Sequence[Rescued], now: int) -> Done:
        """Settle some jobs of a lease, and report those for which that was done."""
        settled = await settle_endings(self._driver, endings, now, reports=self._reports)
        if done := [pair for pair in settled if pair[1].answer is SettleAnswer.DONE]:
            await self._tell(done)
        return settled

    async def _tell(self, done: Done) -> None:
        try:
            if self._reports is not None:
                await self._reports.losses(self._driver, done)
        except Exception as error:
            if is_outage(error):
                raise
            log_bug(logger, "lost jobs could not be reported", error)

    async def _put_off(self, lease: ExpiredLease) -> None:
        """Try a lease again later whose jobs a bug keeps in it: after as long again as it has expired for."""
        overdue = lease.now - lease.expired_at
        pause = min(max(overdue, COLLECTOR_LEASE), PUT_OFF_MAX)
        await self._driver.extend([Extension(lease.token, pause, tuple(lease.running.items()))])

    async def _keep(self, lease: ExpiredLease) -> bool:
        """Extend the lease when a third of its time is over; whether it is still this collector's."""
        now = self._driver.clock.monotonic()
        if (now - self._held_since) * MICROS_PER_SECOND < self._duration / 3:
            return True
        self._held_since = now
        extension = Extension(lease.token, self._duration, tuple(lease.running.items()))
        heartbeat = await self._driver.extend([extension])
        return heartbeat.leases[0].answer is SettleAnswer.DONE

    async def _ending(self, lease: ExpiredLease, job: Claimed) -> list[Rescued]:
        """One, or none if a bug of ours keeps the job where it is."""
        try:
            rows, last_step = await loss_history(self._driver, Steps.offered_by(self._driver), job)
            loss = settle_loss(lease, job, rows, last_step=last_step)
            return [(await with_failure_task(self._driver, loss, job), job, rows)]
        except Exception as error:
            if is_outage(error):
                raise
            log_bug(logger, "a lost job could not be settled and stays where it is", error, {"job": job.id})
            return []


async def rescue_expired_leases(
    driver: Driver, *, reports: Reports | None = None
) -> list[tuple[Transition, SettleResult]]:
    """Settle what expired leases held; each transition that was settled, with the store's answer."""
    return await Collector(driver, reports=reports).collect()


async def settle_endings(
    driver: Driver, endings: Sequence[Rescued], now: int, *, reports: Reports | None = None
) -> list[tuple[Transition, SettleResult]]:
    """Settle attempts for a worker that cannot any more; those of recurring jobs with the occurrence that follows.

    Each with the store's answer, except where a bug of ours keeps a job where it is.
    """

    async def settle(part: Sequence[Rescued]) -> list[tuple[Rescued, SettleResult | None]]:
        settled = await _settle_endings(driver, part, now)
        if reports is not None:  # at once: what is settled is not settled again
            jobs, transitions = [job for (_, job, _), _ in settled], [each[0] for each, _ in settled]
            reports.settled_for_others(jobs, transitions, [answer for _, answer in settled])
        return list(settled)

    async def mend(ending: Rescued, error: Exception) -> tuple[Rescued, SettleResult | None]:
        transition, job, rows = ending
        if isinstance(error, REFUSALS):
            log_refusal(logger, error, {"job": job.id})
            try:
                [settled] = await settle([(without_content(transition), job, rows)])
                return settled
            except Exception as another:
                if is_outage(another):
                    raise
                error = another
        log_bug(logger, "a lost job could not be settled and stays where it is", error, {"job": job.id})
        return ending, None

    settled = await settle_apart(settle, endings, mend) if endings else []
    return [(ending[0], answer) for ending, answer in settled if answer is not None]


async def _settle_endings(
    driver: Driver, endings: Sequence[Rescued], now: int
) -> list[tuple[Rescued, SettleResult]]:
    transitions = [
        ending if job.due_at is None else _armed(ending, job, decoded_options(job), job.version, now, rows)
        for ending, job, rows in endings
    ]
    answers = await driver.settle(transitions)
    for index, (ending, job, rows) in enumerate(endings):
        while (
            answers[index].answer is SettleAnswer.CHANGED
        ):  # its schedule: the next occurrence is computed anew
            [record] = await driver.get([job.id])
            if record is None:
                break
            now = answers[index].at
            options = record.options if record.unreadable_options is None else decoded_options(job)
            transitions[index] = _armed(ending, job, options, record.version, now, rows)
            [answers[index]] = await driver.settle([transitions[index]])
    settled = [
        (transition, job, rows) for transition, (_, job, rows) in zip(transitions, endings, strict=True)
    ]
    return list(zip(settled, answers, strict=True))


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


class AttemptReader(Protocol):
    """A driver, or a worker's patient store."""

    async def history(self, job_id: str, limit: int) -> list[AttemptRecord]: ...


class StepReader(Protocol):
    async def steps(self, job_id: str) -> dict[str, StepRecord]: ...


async def loss_history(
    store: AttemptReader, step_reader: StepReader | None, job: Claimed
) -> tuple[list[AttemptRecord], int]:
    """What a loss is weighed by: the attempts before this one, and the one that stored the latest durable step."""
    if job.number == job.first_number:  # nothing of this run is behind it
        return [], 0
    steps = {} if step_reader is None else await step_reader.steps(job.id)
    last_step = max((step.number for step in steps.values()), default=0)
    return await store.history(job.id, HISTORY_ROWS), last_step


async def with_failure_task(driver: Driver, transition: Transition, job: Claimed) -> Transition:
    """If this is the death of a job that was stored with a failure task: with that."""
    if transition.to is not State.DEAD or job.options is None or '"failure_task"' not in job.options:
        return transition
    from taskharbor.failure_tasks import FailureTasks

    try:
        options = msgspec.json.decode(job.options, type=Options)
    except msgspec.MsgspecError:  # of a newer version: its own workers know better
        return transition
    store: Any = Workflows.of(driver) if options.failure_task is True else driver
    return await FailureTasks(store).added(transition, job, options)
