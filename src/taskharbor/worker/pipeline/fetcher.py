"""The fetcher: claims jobs ahead of the executor, never more than will begin within a moment.

It alone claims, so it also knows when there is nothing left to do.
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
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.executor import Executor
from taskharbor.worker.pipeline.pipeline import Pipeline
from taskharbor.worker.supervisor_link import SupervisorLink
from taskharbor.worker.upkeep.retirement import Retirement
from taskharbor.worker.upkeep.retrying import PAUSE_SECONDS, PAUSE_SECONDS_MAX

logger = logging.getLogger("taskharbor.worker")

BATCH_MAX = 1_000
AHEAD_MAX = 3_000  # jobs claimed but not begun, at most
AHEAD_SECONDS = 0.2  # … and no more than will begin within this time
AHEAD_BYTES = 16 * 1_048_576  # … nor more than this of payloads, as far as the last claims tell
SUSPECT_PATIENCE_SECONDS = 1.0  # how long suspects wait for the worker to be idle by itself
STANDSTILL_SECONDS = 5.0  # how long the rest is held up for suspects; doubled while that is not enough
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
        tell_unreadable: Callable[[Sequence[str]], Awaitable[None]],
        retirement: Retirement,
        oversight: SupervisorLink | None = None,
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
        self._tell_unreadable = tell_unreadable
        self._retirement = retirement
        self._oversight = oversight
        self._rate = expected_pace  # begins a second, lately
        self._measured_at = clock.monotonic()
        self._measured = 0
        self._at_once = (
            BATCH_MAX  # jobs of one claim; fewer after one that failed although the store was there
        )
        self._pause = PAUSE_SECONDS
        self._job_bytes = 1.0  # of a job's payload, lately
        self._suspects_since: float | None = None
        self._standstill = STANDSTILL_SECONDS
        self._suspects_elsewhere = False  # a supervisor sees to it that they are executed

    async def run(self, *, until_drained: bool = False) -> None:
        """Claim without end, or until nothing is runnable now and nothing is under way."""
        self._executor.offer(())  # what a round that was cut off has brought
        is_drained = False
        while not is_drained:
            is_drained = await self._store.outages.retry_until_available(
                lambda: self._round(until_drained), "the store cannot be watched"
            )

    async def _round(self, until_drained: bool) -> bool:
        """One claim, or the wait until one is due; whether all is drained that was to be."""
        token = self._driver.change_token()
        if self._retirement.jobs_left() == 0:
            await self._wait_for_room()
            return False
        if self._oversight is not None and self._oversight.suspects_only:
            return await self._suspects_round(token, until_drained)
        if self._suspects_since is not None and await self._execute_a_suspect():
            return False
        wanted = self._wanted()
        if wanted <= 0:
            await self._wait_for_room()
            return False
        was_done = self._pipeline.is_done  # what is settled during the claim may bring children
        claim = await self._claim_or_pause(wanted)
        if claim is None:
            return False
        self._notice_suspects(claim)
        if len(claim.jobs) == wanted or claim.more:
            return False  # at once, before these are executed: the store leases the next ones meanwhile
        if until_drained and not claim.jobs:
            if claim.searched and self._pipeline.is_done and not self._suspects_elsewhere:
                return was_done and self._suspects_since is None
            await self._wait_for_room_or_change(token, self._until_next(claim))
        elif self._suspects_since is None:
            await self._driver.wait_for_change(token, self._until_next(claim))
        elif not self._pipeline.is_done:  # otherwise a suspect has its turn at once
            await self._wait_for_room_or_change(token, self._until_next(claim))
        return False

    # -- claiming --

    def _wanted(self) -> int:
        """Fill the free slots, and as much ahead as will begin within a moment."""
        pipeline = self._pipeline
        if pipeline.is_full:
            return 0
        self._measure()
        ahead = min(AHEAD_MAX, int(self._rate * AHEAD_SECONDS), int(AHEAD_BYTES / self._job_bytes))
        target = pipeline.free + ahead
        pipeline.low_water = max(0, target - BATCH_MAX)
        missing = target - len(pipeline.claimed)
        if self._oversight is not None:
            missing = min(missing, self._oversight.room)
        if (allowance := self._allowance()) is not None:
            if allowance <= 0:
                pipeline.low_water = 0  # wakes the fetcher when the last of them begins
                return 0
            missing = min(missing, allowance)
        # A claim costs the same for one as for many: wait until a good part of the target is missing.
        if pipeline.claimed and missing < min(BATCH_MAX, target // 2):
            pipeline.low_water = max(0, target - min(BATCH_MAX, target // 2))
            return 0
        # Asking for many more than fit into a claim would only make the store look at them in vain.
        return min(self._at_once, missing, max(1, int(2 * CLAIM_BYTES / self._job_bytes)))

    def _allowance(self) -> int | None:
        """How many more jobs this worker may claim before it retires; None for any number."""
        left = self._retirement.jobs_left()
        return None if left is None else left - self._pipeline.unbegun

    def slow_down(self) -> None:
        """What was claimed ahead has been handed back: nothing is, until handlers begin again."""
        self._rate = 0.0

    def _measure(self) -> None:
        now = self._clock.monotonic()
        elapsed = now - self._measured_at
        if elapsed >= 0.01:
            begun = self._pipeline.begun - self._measured
            self._rate = 0.5 * self._rate + 0.5 * begun / elapsed
            self._measured_at, self._measured = now, self._pipeline.begun

    async def _claim_or_pause(self, limit: int, *, suspects: bool = False) -> Claim | None:
        """Claim; None, after a pause if it must be, if the claim failed although the store is there."""
        try:
            claim = await self._claim(limit, suspects=suspects)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must end neither the worker nor its claims
            await self._claim_fewer(limit, error)
            return None
        self._claim_more()
        return claim

    async def _claim_fewer(self, limit: int, error: Exception) -> None:
        """After a claim that failed for what it was to hand out: half as many the next time, down to one."""
        fields = {"limit": limit, "error": repr(error)}
        if limit > 1:
            self._at_once = limit // 2
            log_line(
                logger,
                logging.ERROR,
                "a claim failed, and the store is not away: claiming fewer: {error}",
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
        """Learn how large jobs are: at once that they are large, and little by little that they are small again."""
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
            supervised=self._oversight is not None,
            max_losses=self._max_losses,
        )
        if self._oversight is not None:
            self._oversight.claiming(request.token, alone=suspects)
        # With the same token: an answer that was lost comes again.
        claim = await self._store.repeat(
            lambda: self._claim_once(request), "the store cannot be claimed from"
        )
        self._weigh(claim.jobs)
        self._executor.offer(self._accepted(request, claim))
        if claim.unreadable:
            await self._tell_unreadable(claim.unreadable)
        return claim

    def _accepted(self, request: ClaimRequest, claim: Claim) -> list[Execution]:
        if not claim.jobs:
            if self._oversight is not None:
                self._oversight.claimed(None, [])
            return []
        lease = self._leases.add(request.token, claim.expires_at, alone=request.suspects)
        executions = [Execution(job, lease, self._harbor, self._time, self._pipeline) for job in claim.jobs]
        lease.executions = {execution.claimed.id: execution for execution in executions}
        if self._oversight is not None:
            self._oversight.claimed(lease, executions)
        return executions

    async def _claim_once(self, request: ClaimRequest) -> Claim:
        asked_at = self._time.asking()
        claiming = own_task(self._driver.claim(request))
        try:
            claim = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The worker stops, but the store may be leasing jobs to it: they are handed back with the
            # rest, not left until the lease runs out.
            try:
                await asyncio.wait([claiming])
            finally:  # cancelled again: an end is wanted now
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
        """Until something ends here, or something else has happened in the store."""
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
        """How long there is nothing to do, as far as is known; jittered, so that workers do not poll as one."""
        seconds = self._poll_seconds * random.uniform(0.75, 1.25)
        if claim.next_due is not None:
            due = (claim.next_due - self._time.now()) / MICROS_PER_SECOND
            seconds = min(seconds, max(0.0005, due))
        return seconds

    # -- suspects --

    def _notice_suspects(self, claim: Claim) -> None:
        if self._oversight is not None:
            self._suspects_elsewhere = claim.suspects_waiting
            if claim.suspects_waiting:
                self._oversight.suspects_waiting()
        elif not claim.suspects_waiting:
            self._forget_suspects()
        elif self._suspects_since is None:
            self._suspects_since = self._clock.monotonic()

    def _forget_suspects(self) -> None:
        self._suspects_since = None
        self._standstill = STANDSTILL_SECONDS

    def _suspects_overdue(self) -> bool:
        """Whether nothing else is to begin until a suspect has had its turn."""
        if self._suspects_since is None:
            return False
        now = self._clock.monotonic()
        overdue = now - self._suspects_since - SUSPECT_PATIENCE_SECONDS
        if overdue >= self._standstill:
            # Something runs for long. The rest goes on for three times as long as it was held up, then suspects
            # are tried again with twice the patience: neither do they starve, nor do they block the rest.
            self._suspects_since = now + 3 * self._standstill - SUSPECT_PATIENCE_SECONDS
            self._standstill = min(2 * self._standstill, STANDSTILL_SECONDS_MAX)
            return False
        return overdue >= 0

    async def _execute_a_suspect(self) -> bool:
        """When nothing else is under way: one suspect, alone in this worker, from claim to settle."""
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
        # The rest has its turn now, before the next suspect.
        self._forget_suspects()
        return bool(jobs)

    async def _suspects_round(self, token: int, until_drained: bool) -> bool:
        """In a process of their own: one suspect after the other, until there has been none for a while."""
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
