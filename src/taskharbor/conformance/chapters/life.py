"""Opening, closing, the clock and waiting for a change."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from taskharbor.conformance.store import HOUR, LEASE, MINUTE, Chapter, Store, waiting_for_change
from taskharbor.drivers.base import Cancel, Check, ClaimRequest, Extension
from taskharbor.records import AttemptStatus, JobFilter, State
from taskharbor.sync import run_inline

PATIENCE_SECONDS = 10.0


class Life(Chapter):
    def test_migrating_and_opening_again_changes_nothing(self, store: Store) -> None:
        """A store that is up to date has no migrations left to apply, and keeps what it holds."""
        job_id = store.enqueue()
        assert store.run(store.driver.migrate()) == []
        store.run(store.driver.open())
        assert store.state(job_id) is State.READY

    def test_closing_twice_is_fine(self, store: Store) -> None:
        """A caller that closes a driver need not know whether it is closed already."""
        store.run(store.driver.close())
        store.run(store.driver.close())

    def test_check_names_each_finding(self, store: Store) -> None:
        """The doctor reads a list of findings, each with a name and a sentence about it."""
        checks = store.run(store.driver.check())
        assert all(isinstance(check, Check) and check.name and check.detail for check in checks)

    def test_store_tells_the_time_of_its_clock(self, store: Store) -> None:
        """The clock that was injected is the one that decides."""
        assert store.run(store.driver.now()) == store.now
        store.pass_time(HOUR)
        assert store.run(store.driver.now()) == store.now

    def test_without_a_given_time_the_clock_decides(self, store: Store) -> None:
        """Every verb that is given no time reads the store's clock."""
        driver, start = store.driver, store.now

        async def story() -> None:
            early, late = store.new(), store.new(delay=MINUTE)
            answers = await driver.enqueue([early, late])
            assert [answer.run_at for answer in answers] == [start, start + MINUTE]
            claim = await driver.claim(ClaimRequest("worker/1", LEASE, 10))
            assert ([job.id for job in claim.jobs], claim.now) == ([early.id], start)
            assert (claim.expires_at, claim.next_due) == (start + LEASE, start + MINUTE)
            assert (await driver.extend([Extension("worker/1", LEASE)])).now == start
            assert await driver.take_expired("worker/2", LEASE) is None
            store.pass_time(MINUTE)
            assert (await driver.counts())[State.READY] == 1
            assert [job.id for job in (await driver.list(JobFilter(state=State.READY))).jobs] == [late.id]
            assert [(queue.ready, queue.running) for queue in await driver.queues()] == [(1, 1)]
            assert [lease.expired for lease in await driver.leases()] == [True]
            expired = await driver.take_expired("worker/2", LEASE)
            assert expired is not None
            assert (expired.now, expired.expired_at) == (start + MINUTE, start + LEASE)
            await driver.operate(Cancel(), [late.id])
            [record] = await driver.get([late.id])
            assert record is not None
            assert record.finished_at == start + MINUTE

        store.run(story())

    def test_given_time_overrides_the_clock(self, store: Store) -> None:
        """A verb that is given a time knows no other."""
        job_id = store.enqueue(delay=HOUR)
        later = store.now + HOUR
        [record] = store.run(store.driver.get([job_id], now=later))
        assert record is not None
        assert record.state is State.READY
        claim = store.run(store.driver.claim(ClaimRequest("worker/1", LEASE, 10), now=later))
        assert (claim.now, claim.expires_at) == (later, later + LEASE)

    def test_wait_ends_when_its_time_is_over(self, store: Store) -> None:
        """Waiting for a change never lasts longer than was asked for."""

        async def story() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                waiting = asyncio.ensure_future(
                    store.driver.wait_for_change(store.driver.change_token(), 0.2)
                )
                while not waiting.done():
                    store.pass_time(MINUTE)
                    await asyncio.sleep(0.01)
                await waiting

        store.run(story())

    @pytest.mark.parametrize("what", ["enqueue", "settle", "cancel"])
    def test_whatever_a_caller_may_wait_for_ends_a_wait(self, store: Store, what: str) -> None:
        """New work, the end of a job and an operator's doing are heard long before the wait's own time is over."""
        held, driver = store.running(), store.driver
        done = store.transition(held, AttemptStatus.SUCCEEDED, State.SUCCEEDED)

        async def story() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                waiting = await waiting_for_change(driver)
                match what:
                    case "enqueue":
                        await driver.enqueue([store.new()])
                    case "settle":
                        await driver.settle([done])
                    case "cancel":
                        await driver.operate(Cancel(), [held.id])
                await waiting

        store.run(story())

    def test_change_between_looking_and_waiting_is_not_missed(self, store: Store) -> None:
        """Take the token, look, then wait: what changed after the look ends the wait at once."""

        async def story() -> None:
            async with asyncio.timeout(PATIENCE_SECONDS):
                token = store.driver.change_token()
                await store.driver.enqueue([store.new()])
                await store.driver.wait_for_change(token, 3600)

        store.run(story())

    def test_inline_driver_never_suspends_in_a_synchronous_call(self, store: Store) -> None:
        """A driver that says it is inline can be stepped to the end without a loop, waiting included."""
        if not store.driver.inline:
            return
        driver, job = store.driver, store.new()
        [answer] = run_inline(driver.enqueue([job]))
        assert answer.id == job.id
        assert len(run_inline(driver.claim(ClaimRequest("worker/1", LEASE, 1))).jobs) == 1

        # A blocked thread cannot move the clock it may be waiting by, so that another one does.
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda: run_inline(driver.wait_for_change(driver.change_token(), 0.05)))
            until = time.monotonic() + PATIENCE_SECONDS
            while not waiting.done() and time.monotonic() < until:
                store.pass_time(MINUTE)
                time.sleep(0.01)
            assert waiting.done(), "the wait is over when its time is"
            waiting.result()
