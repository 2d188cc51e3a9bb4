"""The fetcher: claims jobs ahead of the executor, never more than will begin within a moment.

Only the fetcher claims, so it also knows when nothing is left to do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from taskharbor.client.harbor import Harbor
from taskharbor.clock import MICROS_PER_SECOND, Clock, wait_for
from taskharbor.drivers.base import CLAIM_BYTES, Claim, Claimed, ClaimRequest
from taskharbor.own_tasks import own_task
from taskharbor.telemetry.attempts import Reporter
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.executor import Executor
from taskharbor.worker.pipeline.pipeline import Pipeline
from taskharbor.worker.pipeline.preflight import unknown_task
from taskharbor.worker.supervisor_link import SupervisorLink
from taskharbor.worker.upkeep.colleagues import Colleagues
from taskharbor.worker.upkeep.retirement import Retirement
from taskharbor.worker.upkeep.retrying import PAUSE_SECONDS, PAUSE_SECONDS_MAX

logger = logging.getLogger("taskharbor.worker")

BATCH_MAX = 1_000
AHEAD_MAX = 3_000  # jobs claimed but not begun, at most
AHEAD_SECONDS = 0.2  # … and no more than will begin within this time
AHEAD_BYTES = 16 * 1_048_576  # … nor more than this of payloads, estimated from the last claims
SUSPECT_PATIENCE_SECONDS = 1.0  # how long suspects wait for the worker to become idle without its help
STANDSTILL_SECONDS = 5.0  # how long other jobs wait for suspects; doubled while that is not enough
STANDSTILL_SECONDS_MAX = 30.0
LINGER_SECONDS = 5.0  # how long a process for suspects waits for more of them


class Fetcher:
    def __init__(
        self,
        pipeline: Pipeline,
        executor: Executor,
        *,
        queues: tuple[str, ...] | None,
        lease: int,
        max_losses: int,
        poll_seconds: float,
        expected_pace: float,
        clock: Clock,
        harbor: Harbor,
        report_unreadable: Callable[[Sequence[str]], Awaitable[None]],
        retirement: Retirement,
        colleagues: Colleagues,
        reporter: Reporter,
        supervisor_link: SupervisorLink | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._executor = executor
        self._harbor = harbor
        self._store = pipeline.store
        self._driver = pipeline.store.driver
        self._queues = queues
        self._lease = lease
        self._max_losses = max_losses
        self._poll_seconds = poll_seconds
        self._leases = pipeline.leases
        self._time = pipeline.time
        self._clock = clock
        self._report_unreadable = report_unreadable
        self._retirement = retirement
        self._colleagues = colleagues
        self._aside: tuple[str, ...] = ()  # labels that the next claim looks into …
        self._recall: tuple[str, ...] = ()  # … and those of them whose tasks this worker knows
        self._looked_into: tuple[str, ...] = ()  # by the last claim
        self._foreign = 0  # jobs of the last claim that this worker cannot begin
        self._supervisor_link = supervisor_link
        self._meter = reporter.meter
        self._claiming_since = 0.0  # for the meter
        self._rate = expected_pace  # jobs begun per second, lately
        self._measured_at = clock.monotonic()
        self._measured = 0
        self._at_once = (
            BATCH_MAX  # jobs per claim; fewer after a claim that failed while the store was available
        )
        self._pause = PAUSE_SECONDS
        self._job_bytes = 1.0  # of a job's payload, lately
        self._suspects_since: float | None = None
        self._standstill = STANDSTILL_SECONDS
        self._suspects_elsewhere = False  # the supervisor starts a process for them

    async def run(self, *, until_drained: bool = False) -> None:
        """Claim until cancelled; with `until_drained`, until no job is runnable now and none is under way."""
        self._executor.offer(())  # a cancelled round may have left claimed jobs
        is_drained = False
        while not is_drained:
            is_drained = await self._store.outages.retry_until_available(
                lambda: self._round(until_drained), "the store cannot be watched"
            )

    async def _round(self, until_drained: bool) -> bool:
        """Claim once, or wait until a claim is due; return whether everything is drained."""
        token = self._driver.change_token()
        if self._retirement.jobs_left() == 0:
            await self._wait_for_room()
            return False
        if self._supervisor_link is not None and self._supervisor_link.suspects_only:
            return await self._suspects_round(token, until_drained)
        if self._suspects_since is not None and await self._execute_a_suspect():
            return False
        wanted = self._wanted()
        if wanted <= 0:
            await self._wait_for_room()
            return False
        was_done = self._pipeline.is_done  # a job that is settled during the claim may add children
        claim = await self._claim_or_pause(wanted)
        if claim is None:
            return False
        self._notice_suspects(claim)
        if len(claim.jobs) == wanted or claim.more or not set(self._aside) <= set(self._looked_into):
            return False  # claim again at once: the store leases the next jobs while these are executed
        if until_drained and not claim.jobs:
            if claim.searched and self._pipeline.is_done and not self._suspects_elsewhere:
                return was_done and self._suspects_since is None
            await self._wait_for_room_or_change(token, self._until_next(claim))
        elif self._suspects_since is None:
            await self._driver.wait_for_change(token, self._until_next(claim))
        elif not self._pipeline.is_done:  # otherwise a suspect runs at once
            await self._wait_for_room_or_change(token, self._until_next(claim))
        return False

    # -- claiming --

    def _wanted(self) -> int:
        """Return how many jobs to claim: for the free slots, and ahead for what will begin within a moment."""
        pipeline = self._pipeline
        if pipeline.is_full:
            return 0
        self._measure()
        ahead = min(AHEAD_MAX, int(self._rate * AHEAD_SECONDS), int(AHEAD_BYTES / self._job_bytes))
        # What this worker cannot begin is gone in a moment, and there may be much of it before its own jobs.
        target = pipeline.free + ahead + min(BATCH_MAX, 2 * self._foreign)
        pipeline.low_water = max(0, target - BATCH_MAX)
        missing = target - len(pipeline.claimed)
        if self._supervisor_link is not None:
            missing = min(missing, self._supervisor_link.room)
        if (allowance := self._allowance()) is not None:
            if allowance <= 0:
                pipeline.low_water = 0  # wakes the fetcher when the last claimed job begins
                return 0
            missing = min(missing, allowance)
        # A claim of one job costs as much as a claim of many: wait until a good part of the target is missing.
        if pipeline.claimed and missing < min(BATCH_MAX, target // 2):
            pipeline.low_water = max(0, target - min(BATCH_MAX, target // 2))
            return 0
        # The store would read more jobs than fit into one claim in vain.
        return min(self._at_once, missing, max(1, int(2 * CLAIM_BYTES / self._job_bytes)))

    def _allowance(self) -> int | None:
        """How many more jobs this worker may claim before it retires; None for any number."""
        left = self._retirement.jobs_left()
        return None if left is None else left - self._pipeline.unbegun

    def slow_down(self) -> None:
        """Claim nothing ahead until handlers begin again."""
        self._rate = 0.0

    def _measure(self) -> None:
        now = self._clock.monotonic()
        elapsed = now - self._measured_at
        if elapsed >= 0.01:
            begun = self._pipeline.begun - self._measured
            self._rate = 0.5 * self._rate + 0.5 * begun / elapsed
            self._measured_at, self._measured = now, self._pipeline.begun

    async def _claim_or_pause(self, limit: int, *, suspects: bool = False) -> Claim | None:
        """Claim; return None if the claim failed while the store was available, after a pause if it was for one job."""
        try:
            claim = await self._claim(limit, suspects=suspects)
        except Exception as error:  # noqa: BLE001 - no error of a claim may end the worker
            await self._claim_fewer(limit, error)
            return None
        self._claim_more()
        return claim

    async def _claim_fewer(self, limit: int, error: Exception) -> None:
        """After a claim that failed because of its jobs, ask for half as many next time, down to one."""
        fields = {"limit": limit, "error": repr(error)}
        if limit > 1:
            self._at_once = limit // 2
            log_line(
                logger,
                logging.ERROR,
                "a claim failed although the store is available; claiming fewer: {error}",
                fields,
            )
            return
        log_line(logger, logging.ERROR, "the next job cannot be claimed; trying again: {error}", fields)
        await self._clock.sleep(self._pause)
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)

    def _claim_more(self) -> None:
        self._at_once = min(2 * self._at_once, BATCH_MAX)
        self._pause = PAUSE_SECONDS

    def _weigh(self, jobs: list[Claimed]) -> None:
        """Update the estimate of a job's size: it grows at once and shrinks slowly."""
        if jobs:
            size = max(1.0, sum([len(job.payload) for job in jobs]) / len(jobs))
            self._job_bytes = max(size, 0.5 * (self._job_bytes + size))

    async def _claim(self, limit: int, *, suspects: bool = False) -> Claim:
        pipeline = self._pipeline
        request = ClaimRequest(
            token=self._leases.new_token(),
            lease=self._lease,
            limit=limit,
            queues=self._queues,
            once_limit=max(0, pipeline.free - len(pipeline.claimed)),
            suspects=suspects,
            supervised=self._supervisor_link is not None,
            max_losses=self._max_losses,
            aside=self._aside,
            recall=self._recall,
        )
        if self._supervisor_link is not None:
            self._supervisor_link.claiming(request.token, alone=suspects)
        if self._meter is not None:
            self._claiming_since = self._clock.monotonic()
        # With the same token, the store repeats an answer that was lost.
        claim = await self._store.repeat(
            lambda: self._claim_once(request), "the store cannot be claimed from"
        )
        self._weigh(claim.jobs)
        pipeline.heed_holds(claim.holds)
        self._executor.offer(self._to_begin(self._accepted(request, claim)))
        # (Nothing is awaited before this: a worker that stops must not forget what it was given.)
        self._looked_into = request.aside
        if claim.aside or self._aside:
            self._aside, self._recall = await self._colleagues.to_look_into(claim.aside, self._queues)
        if claim.unreadable:
            await self._report_unreadable(claim.unreadable)
        return claim

    def _to_begin(self, executions: list[Execution]) -> list[Execution]:
        """End at once what this worker cannot begin: other workers must not wait until a slot is free here."""
        begin, pipeline = executions, self._pipeline
        if pipeline.holds:
            begin = pipeline.put_aside(begin)
        if None in [execution.task for execution in begin]:
            for execution in begin:
                if execution.task is None:
                    pipeline.end(execution, unknown_task(execution))
            begin = [execution for execution in begin if execution.task is not None]
        self._foreign = len(executions) - len(begin)
        return begin

    def _accepted(self, request: ClaimRequest, claim: Claim) -> list[Execution]:
        series = None
        if self._meter is not None:
            series = self._meter.claimed(claim.jobs, self._clock.monotonic() - self._claiming_since)
        if not claim.jobs:
            if self._supervisor_link is not None:
                self._supervisor_link.claimed(None, [])
            return []
        lease = self._leases.add(request.token, claim.expires_at, alone=request.suspects)
        lease.series = series
        harbor, time, pipeline = self._harbor, self._time, self._pipeline
        executions = [Execution.of(job, lease, harbor, time, pipeline) for job in claim.jobs]
        lease.executions = {execution.claimed.id: execution for execution in executions}
        if self._supervisor_link is not None:
            self._supervisor_link.claimed(lease, executions)
        return executions

    async def _claim_once(self, request: ClaimRequest) -> Claim:
        asked_at = self._time.asking()
        claiming = own_task(self._driver.claim(request))
        try:
            claim = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The worker stops, but the store may be leasing jobs to it. They are handed back with the rest, so they
            # do not have to wait for the lease to expire.
            try:
                await asyncio.wait([claiming])
            finally:  # cancelled again: the worker must end now
                claiming.end()
            if not claiming.cancelled() and claiming.exception() is None:
                self._pipeline.claimed.extend(self._accepted(request, claiming.result()))
            raise
        self._time.learn(claim.now, asked_at)
        return claim

    # -- waiting --

    async def _wait_for_room(self) -> None:
        await self._pipeline.room.wait()
        self._pipeline.room.clear()

    async def _wait_for_room_or_change(self, token: int, seconds: float) -> None:
        """Wait until a job ends here, or the store changes."""
        waiting = [
            own_task(self._wait_for_room()),
            own_task(self._driver.wait_for_change(token, seconds)),
        ]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.end()
        for each in done:
            each.result()

    def _until_next(self, claim: Claim) -> float:
        """Return the seconds until the next claim; with jitter, so that workers do not all poll at once."""
        seconds = self._poll_seconds * random.uniform(0.75, 1.25)
        if claim.next_due is not None:
            due = (claim.next_due - self._time.now()) / MICROS_PER_SECOND
            seconds = min(seconds, max(0.0005, due))
        return seconds

    # -- suspects --

    def _notice_suspects(self, claim: Claim) -> None:
        if self._supervisor_link is not None:
            self._suspects_elsewhere = claim.suspects_waiting
            if claim.suspects_waiting:
                self._supervisor_link.suspects_waiting()
        elif not claim.suspects_waiting:
            self._forget_suspects()
        elif self._suspects_since is None:
            self._suspects_since = self._clock.monotonic()

    def _forget_suspects(self) -> None:
        self._suspects_since = None
        self._standstill = STANDSTILL_SECONDS

    def _suspects_overdue(self) -> bool:
        """Whether other jobs must wait until a suspect has run."""
        if self._suspects_since is None:
            return False
        now = self._clock.monotonic()
        overdue = now - self._suspects_since - SUSPECT_PATIENCE_SECONDS
        if overdue >= self._standstill:
            # A job runs for long. Other jobs go on for three times as long as they had to wait. Then suspects get
            # another try with twice the patience. So suspects do not starve, and do not block the rest.
            self._suspects_since = now + 3 * self._standstill - SUSPECT_PATIENCE_SECONDS
            self._standstill = min(2 * self._standstill, STANDSTILL_SECONDS_MAX)
            return False
        return overdue >= 0

    async def _execute_a_suspect(self) -> bool:
        """Execute one suspect alone in this worker, from claim to settle, once nothing else is under way."""
        if not self._pipeline.is_done:
            if self._suspects_overdue():
                with suppress(TimeoutError):
                    await wait_for(self._clock, self._wait_for_room(), self._standstill)
                return True
            return False
        claim = await self._claim_or_pause(1, suspects=True)
        jobs = claim.jobs if claim is not None else []
        while jobs and not self._pipeline.is_done:
            await self._wait_for_room()
        # Other jobs run before the next suspect.
        self._forget_suspects()
        return bool(jobs)

    async def _suspects_round(self, token: int, until_drained: bool) -> bool:
        """Execute one suspect after the other, in a process for suspects; return True once none came for a while."""
        claim = await self._claim_or_pause(1, suspects=True)
        if claim is None:
            return False
        while claim.jobs and not self._pipeline.is_done:
            await self._wait_for_room()
        if claim.jobs:
            self._suspects_since = None
            return False
        now = self._clock.monotonic()
        self._suspects_since = self._suspects_since or now
        if until_drained or now - self._suspects_since >= LINGER_SECONDS:
            return True
        await self._driver.wait_for_change(token, self._until_next(claim))
        return False
