"""Many at once: what holds for one caller after the other holds for all of them together."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from taskharbor.conformance.store import LEASE, SECOND, Chapter, Held, Store, waiting_for_change
from taskharbor.drivers.base import (
    Claimed,
    ClaimRequest,
    Delete,
    Discard,
    Driver,
    Enqueued,
    Requeue,
    SettleAnswer,
    Transition,
)
from taskharbor.drivers.capabilities import Groups, Holds, Upkeep
from taskharbor.records import AttemptStatus, JobFilter, Reason, State
from taskharbor.rules.aside import task_label
from taskharbor.rules.grouping import Grouping

T = TypeVar("T")

CALLERS = 8


class Concurrency(Chapter):
    def at_once(self, store: Store, call: Callable[[int], Awaitable[T]], callers: int = CALLERS) -> list[T]:
        """Make the calls at the same moment: in threads with a loop of their own, or as tasks of one loop."""
        if not self.threads:
            return store.run(_gather(call, range(callers)))
        barrier = threading.Barrier(callers)

        async def wait_and_call(caller: int) -> T:
            barrier.wait()
            return await call(caller)

        with ThreadPoolExecutor(callers) as pool:
            return list(pool.map(lambda caller: asyncio.run(wait_and_call(caller)), range(callers)))

    def test_concurrent_claims_never_overlap(self, store: Store) -> None:
        """Eight callers that claim at the same time get every job exactly once between them."""
        wanted = {answer.id for answer in store.enqueue_all(*[store.new() for _ in range(200)])}

        async def claim_all(caller: int) -> list[str]:
            claimed: list[str] = []
            for serial in range(1000):
                request = ClaimRequest(f"worker-{caller}/{serial}", LEASE, 5, once_limit=5)
                jobs = (await store.driver.claim(request, now=store.now)).jobs
                if not jobs:
                    break
                claimed += [job.id for job in jobs]
            return claimed

        claimed = Counter(job_id for jobs in self.at_once(store, claim_all) for job_id in jobs)
        assert claimed == Counter(wanted)
        assert store.counts()[State.RUNNING] == 200

    def test_groups_stay_exact_while_dead_jobs_come_and_go(self, store: Store) -> None:
        """Callers bury, requeue, discard, delete and prune at once; then each group is what its dead jobs say."""
        store.need(Groups)
        store.enqueue_all(*[store.new(task=f"task-{n % 3}") for n in range(300)])
        where, driver = JobFilter(state=State.DEAD), store.driver

        async def work(caller: int) -> None:
            chance = random.Random(caller)
            for serial in range(15):
                now = store.now + caller + serial * CALLERS
                token = f"w-{caller}/{serial}"
                jobs = (await driver.claim(ClaimRequest(token, LEASE, 5), now=now)).jobs
                await driver.settle([_death(Held(token, job), chance) for job in jobs], now=now)
                page = await driver.list(where, limit=20, now=now)
                some = [job.id for job in page.jobs if chance.random() < 0.1]
                operation = chance.choice((Requeue(), Requeue(), Requeue(), Discard(), Delete()))
                await driver.operate(operation, some, now=now)
                if caller == 0 and self.prunes(store):
                    await Upkeep.of(driver).prune({State.DEAD: now - 4 * CALLERS}, 3, now=now)
                assert all(group.count > 0 for group in await Groups.of(driver).groups(where, 100))

        self.at_once(store, work)
        grouping = Grouping()
        grouping.add(store.listed(state=State.DEAD))
        expected = grouping.largest(100)
        assert expected
        assert store.run(Groups.of(driver).groups(where, 100)) == expected

    def prunes(self, store: Store) -> bool:
        return Upkeep.offered_by(store.driver) is not None

    def test_concurrent_claims_of_a_place_aside_never_overlap(self, store: Store) -> None:
        """While some callers put jobs aside and others claim there, each job is given to one of them at a time."""
        store.need(Holds)
        label = task_label("test:task")
        wanted = {answer.id for answer in store.enqueue_all(*[store.new() for _ in range(100)])}

        async def work(caller: int) -> list[str]:
            """Half of the callers know the task; the others put aside what they get."""
            claimed: list[str] = []
            knows, empty = caller % 2 == 0, 0
            for serial in range(1000):
                labels = (label,) if knows else ()
                request = ClaimRequest(f"w-{caller}/{serial}", LEASE, 5, aside=labels, recall=labels)
                jobs = (await store.driver.claim(request, now=store.now)).jobs
                empty = 0 if jobs else empty + 1
                if knows:
                    claimed += [job.id for job in jobs]
                elif jobs:
                    held = [Held(request.token, job) for job in jobs]
                    back = [
                        store.transition(one, AttemptStatus.RELEASED, State.READY, aside=label)
                        for one in held
                    ]
                    answers = await store.driver.settle(back, now=store.now)
                    assert {answer.answer for answer in answers} == {SettleAnswer.DONE}
                if empty > 3:
                    break
                await asyncio.sleep(0)
            return claimed

        claimed = [job_id for jobs in self.at_once(store, work) for job_id in jobs]
        rest = [held.id for held in store.claim(limit=100, aside=(label,))]  # put aside after the last look
        assert Counter([*claimed, *rest]) == Counter(wanted)

    def test_concurrent_enqueues_of_one_key_give_one_job(self, store: Store) -> None:
        """Two hundred callers race for one key: one creates the job, all are answered with it."""

        async def enqueue(caller: int) -> list[tuple[str, bool]]:
            async def once(n: int) -> list[Enqueued]:
                job = store.new(id=f"019b76da-a800-7000-9000-{caller * 100 + n:012x}", idempotency_key="k")
                return await store.driver.enqueue([job], now=store.now)

            answers = await _gather(once, range(25))
            return [(answer.id, answer.existed) for [answer] in answers]

        answers = [answer for each in self.at_once(store, enqueue) for answer in each]
        assert len(answers) == 200
        assert len({job_id for job_id, _ in answers}) == 1
        assert [existed for _, existed in answers].count(False) == 1
        assert store.counts()[State.READY] == 1

    def test_concurrent_settles_of_one_attempt_commit_one_outcome(self, store: Store) -> None:
        """Eight outcomes of one attempt: one is recorded, the others learn which."""
        held = store.running()
        statuses = [
            (AttemptStatus.SUCCEEDED, State.SUCCEEDED),
            (AttemptStatus.SLEPT, State.READY),
            (AttemptStatus.TIMED_OUT, State.READY),
            (AttemptStatus.RELEASED, State.READY),
        ]

        async def settle(caller: int) -> SettleAnswer:
            status, to = statuses[caller % len(statuses)]
            [settled] = await store.driver.settle([store.transition(held, status, to)], now=store.now)
            return settled.answer

        answers = self.at_once(store, settle)
        [attempt] = store.history(held.id)
        winner = [status for status, _ in statuses].index(attempt.status)
        assert answers == [
            SettleAnswer.DONE if caller % len(statuses) == winner else SettleAnswer.NOT_RUNNING
            for caller in range(CALLERS)
        ]

    def test_concurrent_collectors_take_each_lease_once(self, store: Store) -> None:
        """Each expired lease goes to one collector."""
        for _ in range(20):
            store.running()
        store.let_expire()

        async def collect(caller: int) -> list[str]:
            collected: list[str] = []
            for serial in range(100):
                expired = await store.driver.take_expired(
                    f"collector-{caller}/{serial}", LEASE, now=store.now
                )
                if expired is None:
                    break
                collected += [job.id for job in expired.jobs]
            return collected

        collected = [job_id for jobs in self.at_once(store, collect) for job_id in jobs]
        assert sorted(collected) == sorted(store.listed_ids(state=State.RUNNING))

    def test_last_members_settled_at_the_same_moment_release_their_dependant(self, store: Store) -> None:
        """When the last dependencies succeed at the same time, exactly one of the settles releases the job."""
        for _ in range(10):
            members = [store.running() for _ in range(CALLERS)]
            waiting = store.enqueue(depends_on=tuple(held.id for held in members))
            released = self.at_once(store, _succeeding(store, members))
            assert sorted(released) == [()] * (CALLERS - 1) + [(waiting,)]
            assert store.state(waiting) is State.READY
            store.succeed(store.claim_one())

    def test_worker_and_collector_race_for_one_outcome(self, store: Store) -> None:
        """At the moment of expiry either the worker's success counts or the collector's loss, never both."""
        for _ in range(10):
            held = store.running()
            in_time, too_late = store.now + LEASE - 1, store.now + LEASE

            async def race(
                caller: int, held: Held = held, in_time: int = in_time, too_late: int = too_late
            ) -> bool:
                if caller == 0:
                    done = store.transition(held, AttemptStatus.SUCCEEDED, State.SUCCEEDED)
                    return (await store.driver.settle([done], now=in_time))[0].answer is SettleAnswer.DONE
                expired = await store.driver.take_expired(f"collector/{held.id}", LEASE, now=too_late)
                if expired is None:
                    return False
                lost = Transition(
                    expired.token, held.id, 1, AttemptStatus.LOST, State.DEAD, reason=Reason.LOST
                )
                return (await store.driver.settle([lost], now=too_late))[0].answer is SettleAnswer.DONE

            outcomes = self.at_once(store, race, callers=2)
            assert outcomes.count(True) == 1
            assert len(store.history(held.id)) == 1
            store.pass_time(SECOND)

    def test_whole_system_at_once_loses_and_doubles_nothing(self, store: Store) -> None:
        """Producers, workers and readers together: every job enqueued succeeds exactly once."""

        async def take_part(caller: int) -> list[str]:
            jobs = [store.new(id=f"019b76da-a800-7000-a000-{caller * 100 + n:012x}") for n in range(30)]
            finished: list[str] = []
            for serial, job in enumerate(jobs):
                await store.driver.enqueue([job], now=store.now)
                token = f"worker-{caller}/{serial}"
                claim = await store.driver.claim(ClaimRequest(token, LEASE, 2), now=store.now)
                await store.driver.counts(now=store.now)
                held = [Held(token, claimed) for claimed in claim.jobs]
                answers = await store.driver.settle([_success(one) for one in held], now=store.now)
                finished += [
                    one.id
                    for one, settled in zip(held, answers, strict=True)
                    if settled.answer is SettleAnswer.DONE
                ]
            return finished

        finished = [job_id for jobs in self.at_once(store, take_part) for job_id in jobs]
        while held := store.claim():
            finished += [one.id for one in held if store.succeed(one).answer is SettleAnswer.DONE]
        assert len(finished) == len(set(finished)) == CALLERS * 30
        assert store.counts()[State.SUCCEEDED] == CALLERS * 30


class SecondDriver(Chapter):
    """Rules about two drivers on one store: two processes, or one before and one after a restart."""

    def second(self, store: Store) -> Driver:
        another = type(self).another
        assert another is not None
        return another(store.driver, store.clock)

    def test_accepted_job_outlives_the_driver_that_accepted_it(self, store: Store) -> None:
        """When enqueue has returned, the job is in the store, whatever becomes of the driver."""
        job_id = store.enqueue(payload='{"n":1}', idempotency_key="k")
        held = store.running()
        store.step(held, "a", "1")
        before = store.everything()
        store.run(store.driver.close())
        store.driver = self.second(store)
        try:
            assert store.everything() == before
            assert store.enqueue(idempotency_key="k") == job_id
            assert store.succeed(held).answer is SettleAnswer.DONE
        finally:
            store.run(store.driver.close())

    def test_drivers_of_one_store_see_each_others_jobs_at_once(self, store: Store) -> None:
        """What one driver has answered, the other one knows."""
        second = self.second(store)

        async def story() -> None:
            for n in range(20):
                job = store.new()
                await store.driver.enqueue([job], now=store.now)
                claim = await second.claim(ClaimRequest(f"second/{n}", LEASE, 1), now=store.now)
                assert [claimed.id for claimed in claim.jobs] == [job.id]
                [settled] = await store.driver.settle(
                    [_success(Held(f"second/{n}", claim.jobs[0]))], now=store.now
                )
                assert settled.answer is SettleAnswer.DONE
            await second.close()

        store.run(story())

    def test_drivers_of_one_store_never_hand_out_the_same_job(self, store: Store) -> None:
        """Eight drivers claim from one store at the same time, and every job is handed out once."""
        wanted = {answer.id for answer in store.enqueue_all(*[store.new() for _ in range(200)])}
        barrier = threading.Barrier(CALLERS)

        async def claim_all(caller: int) -> list[Claimed]:
            driver = self.second(store)
            await driver.open()
            barrier.wait()
            claimed: list[Claimed] = []
            for serial in range(1000):
                claim = await driver.claim(ClaimRequest(f"worker-{caller}/{serial}", LEASE, 5), now=store.now)
                if not claim.jobs:
                    break
                claimed += claim.jobs
            await driver.close()
            return claimed

        with ThreadPoolExecutor(CALLERS) as pool:
            answers = list(pool.map(lambda caller: asyncio.run(claim_all(caller)), range(CALLERS)))
        assert Counter(job.id for claimed in answers for job in claimed) == Counter(wanted)

    def test_wait_hears_of_a_job_from_another_driver(self, store: Store) -> None:
        """A worker learns of work that another process has enqueued long before its own wait is over."""
        second = self.second(store)

        async def story() -> None:
            async with asyncio.timeout(10):
                waiting = await waiting_for_change(second)
                await store.driver.enqueue([store.new()])
                await waiting
            await second.close()

        store.run(story())


def _death(held: Held, chance: random.Random) -> Transition:
    return Transition(
        held.token, held.id, held.number, AttemptStatus.FAILED, State.DEAD, attempts=1, reason=Reason.EXHAUSTED,
        error=f"error {held.id}", fingerprint=chance.choice("ab") * 16, code_version=chance.choice((None, "1", "2")),
    )  # fmt: skip


def _success(held: Held) -> Transition:
    return Transition(held.token, held.id, held.number, AttemptStatus.SUCCEEDED, State.SUCCEEDED)


def _succeeding(store: Store, members: list[Held]) -> Callable[[int], Awaitable[tuple[str, ...]]]:
    async def succeed(caller: int) -> tuple[str, ...]:
        [settled] = await store.driver.settle([_success(members[caller])], now=store.now)
        assert settled.answer is SettleAnswer.DONE
        return settled.released

    return succeed


async def _gather(call: Callable[[int], Awaitable[T]], callers: range) -> list[T]:
    return list(await asyncio.gather(*[call(caller) for caller in callers]))
