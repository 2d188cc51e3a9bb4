"""Claims beside a held snapshot follow the trail of the last one: what they find at once, and what a search finds."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import msgspec
import pytest

from taskharbor import Harbor, Worker
from taskharbor.clock import ManualClock, from_micros
from taskharbor.drivers.base import Claim, Claimed, ClaimRequest, Transition
from taskharbor.drivers.postgres import PostgresDriver, claim_hints
from taskharbor.drivers.postgres.claim_hints import ClaimHints, HintLane, SearchPlan, SearchReport
from taskharbor.records import AttemptStatus, Delivery, NewJob, State
from tests.postgres import store
from tests.postgres.duties import new
from tests.postgres.snapshots import entries_read, pages_read, snapshot_held

SECOND = 1_000_000
LEASE = 3_600 * SECOND
DEAD = 3_000


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is far, for a test that need not wait until so many are dead."""
    monkeypatch.setattr(claim_hints, "FAR", DEAD // 2)


class Yard:
    """A store on a manual clock, with a snapshot held while jobs come and go."""

    def __init__(self, driver: PostgresDriver, clock: ManualClock) -> None:
        self.driver = driver
        self.clock = clock
        self._tokens = itertools.count(1)
        self._ids = itertools.count(1)

    def new(self, queue: str = "q", **fields: Any) -> NewJob:
        """Ids rise, as the callers' do: of two jobs that are due at one time, the first one is first."""
        return new(queue, id=f"019b76da-a800-7000-8000-{next(self._ids):012x}", **fields)

    async def enqueue(self, count: int = 1, queue: str = "q", **fields: Any) -> list[str]:
        answers = await self.driver.enqueue([self.new(queue, **fields) for _ in range(count)])
        return [each.id for each in answers]

    async def claim(self, limit: int = 1, **fields: Any) -> Claim:
        token = f"worker/{next(self._tokens)}"
        return await self.driver.claim(ClaimRequest(token, LEASE, limit, **{"once_limit": limit, **fields}))

    async def ids(self, limit: int = 1, **fields: Any) -> list[str]:
        return [job.id for job in (await self.claim(limit, **fields)).jobs]

    async def bury(self, queue: str = "q", priority: int = 0) -> list[Claimed]:
        """Jobs that are claimed, and whose rows stay where they were."""
        await self.enqueue(DEAD, queue, priority=priority)
        buried = (await self.claim(DEAD, queues=(queue,))).jobs
        assert len(buried) == DEAD
        self.clock.advance(1)
        return buried

    async def set_out(self) -> None:
        """The search past the dead that the next claims' trail is of."""
        claim = await self.claim(1)
        assert claim.searched
        assert (await self.claim(1)).searched is False
        self.clock.advance(0.5)

    async def lose_to_others(self) -> None:
        """Jobs that another worker claims, so that this one's trail does not know of it."""
        await self.enqueue(DEAD)
        others = PostgresDriver(self.driver.dsn, clock=self.clock)
        assert len((await others.claim(ClaimRequest("other/1", LEASE, DEAD))).jobs) == DEAD
        await others.close()

    async def put_back(self, job: Claimed, *, suspect: bool = False) -> None:
        token = "worker/1"  # who has buried it
        transition = Transition(
            token, job.id, job.number, AttemptStatus.RELEASED, State.READY, suspect=suspect
        )
        await self.driver.settle([transition])


@pytest.fixture
def bare() -> Iterator[Yard]:
    """Nobody holds a snapshot, and nothing is migrated."""
    clock = ManualClock()
    with store.fresh(clock) as driver:
        yield Yard(driver, clock)


@pytest.fixture
async def yard(bare: Yard) -> AsyncIterator[Yard]:
    await bare.driver.migrate()
    async with snapshot_held(bare.driver.dsn):
        yield bare
    await bare.driver.close()


# -- how far it is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("queues", [None, ("q",)], ids=["every queue", "a named one"])
async def test_claim_on_the_trail_does_not_walk_past_the_dead(
    dsn: str, queues: tuple[str, ...] | None
) -> None:
    clock = ManualClock()
    driver = PostgresDriver(dsn, clock=clock)
    await driver.migrate()
    yard = Yard(driver, clock)
    async with snapshot_held(dsn):
        await yard.bury()
        await yard.enqueue(100)
        clock.advance(1)
        await yard.ids(10, queues=queues)  # past all of them
        before = await entries_read(driver, DEAD)
        for _ in range(5):
            assert len(await yard.ids(10, queues=queues)) == 10
        walked = await entries_read(driver, before + 50) - before
    assert walked < DEAD / 5


async def test_trail_goes_on_where_others_claim(dsn: str) -> None:
    """A worker that gets nothing, since others are quicker, does not walk past all that they have taken."""
    clock = ManualClock()
    driver = PostgresDriver(dsn, clock=clock)
    await driver.migrate()
    yard = Yard(driver, clock)
    async with snapshot_held(dsn):
        await yard.bury()
        await yard.set_out()
        await yard.lose_to_others()
        clock.advance(0.3)
        assert await yard.ids(10) == []
        before = await entries_read(driver, DEAD)
        for _ in range(5):
            assert await yard.ids(10) == []
        walked = await entries_read(driver, before) - before
    assert walked < DEAD / 5


async def test_search_that_finds_a_lane_empty_brings_the_trail_up_to_date(dsn: str) -> None:
    """For a worker that looks now and then, and searches each time, while others take everything."""
    clock = ManualClock()
    driver = PostgresDriver(dsn, clock=clock)
    await driver.migrate()
    yard = Yard(driver, clock)
    async with snapshot_held(dsn):
        await yard.bury()
        await yard.set_out()
        await yard.lose_to_others()
        clock.advance(1)
        assert (await yard.claim(10)).searched
        before = await entries_read(driver, 2 * DEAD)
        assert (await yard.claim(10)).searched is False
        walked = await entries_read(driver, before) - before
    assert walked < DEAD / 5


async def test_claims_follow_a_trail_past_entries_that_are_marked_as_dead(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No snapshot is held, and no vacuum has come yet. A search counts none of these entries, and reads their pages."""
    monkeypatch.setattr(claim_hints, "FAR", 10 * DEAD)
    monkeypatch.setattr(claim_hints, "FAR_PAGES", 10)
    monkeypatch.setattr(claim_hints, "LOOKUP_PAGES", 3)
    clock = ManualClock()
    driver = PostgresDriver(dsn, clock=clock)
    await driver.migrate()
    yard = Yard(driver, clock)
    connection = await asyncpg.connect(dsn)
    await connection.execute("ALTER TABLE taskharbor.ready SET (autovacuum_enabled = off)")
    await yard.bury()
    assert (await yard.claim(1)).searched  # past all of them: it marks them
    assert (await yard.claim(1)).searched  # reads their pages for nothing, …
    assert (await yard.claim(1)).searched  # … so this one begins a trail
    before = await pages_read(driver)
    for _ in range(5):
        assert (await yard.claim(1)).searched is False
    assert await pages_read(driver) - before < 5 * 15
    await connection.execute("VACUUM taskharbor.ready")
    await connection.close()
    clock.advance(1)
    assert (await yard.claim(1)).searched
    assert (await yard.claim(1)).searched  # it is near again, so every claim is a search
    await driver.close()


@pytest.mark.parametrize("reading", ["much that is claimed", "many queues"])
async def test_search_that_reads_many_pages_for_live_jobs_begins_no_trail(
    bare: Yard, monkeypatch: pytest.MonkeyPatch, reading: str
) -> None:
    """A claim on a trail would not see the first job of another queue, however urgent."""
    monkeypatch.setattr(claim_hints, "FAR", 10 * DEAD)
    yard, driver = bare, bare.driver
    await driver.migrate()
    if reading == "much that is claimed":  # from two queues: each job is looked up by itself
        for queue in "ab":
            await yard.enqueue(DEAD, queue)
        for _ in range(3):
            assert len((await yard.claim(1_500)).jobs) == 1_500
    else:
        await driver.enqueue([yard.new(f"q{n}", run_at=yard.clock.now() + LEASE) for n in range(300)])
        for _ in range(3):
            assert (await yard.claim(10)).searched
    [urgent] = await yard.enqueue(queue="elsewhere", priority=100)
    assert await yard.ids(1) == [urgent]
    await driver.close()


async def test_trail_ends_with_the_snapshot(bare: Yard) -> None:
    yard, driver = bare, bare.driver
    await driver.migrate()
    async with snapshot_held(driver.dsn):
        await yard.bury()
        await yard.set_out()
    connection = await asyncpg.connect(driver.dsn)
    await connection.execute(f"VACUUM {driver.schema}.ready")
    await connection.close()
    yard.clock.advance(1)
    assert (await yard.claim(1)).searched
    [elsewhere] = await yard.enqueue(queue="elsewhere")
    assert await yard.ids() == [elsewhere]
    await driver.close()


# -- what is found at once -------------------------------------------------------------------------


async def test_order_is_strict_over_all_queues_on_the_trail(yard: Yard) -> None:
    for queue in "ab":
        await yard.bury(queue)
    jobs: list[tuple[int, float, str]] = []
    for moment in range(4):
        for queue, priority in itertools.product("ab", (0, 5, -5)):
            jobs += [(-priority, moment, id_) for id_ in await yard.enqueue(3, queue, priority=priority)]
        yard.clock.advance(0.1)
    expected = [id_ for *_, id_ in sorted(jobs)]
    found = await yard.ids(5)
    while (claim := await yard.claim(7)).jobs:
        found += [job.id for job in claim.jobs]
    assert found == expected
    assert claim.searched is False


async def test_job_that_arrives_with_a_higher_priority_is_first_on_the_trail(yard: Yard) -> None:
    for priority in (0, 7):
        await yard.bury(priority=priority)
    await yard.enqueue(1, priority=7)
    await yard.enqueue(10)
    await yard.claim(3)  # the one, and two of the others
    [urgent] = await yard.enqueue(1, priority=7)
    claim = await yard.claim(20)
    assert [job.priority for job in claim.jobs] == [7] + [0] * 8
    assert (claim.jobs[0].id, claim.searched) == (urgent, False)


async def test_job_that_is_due_later_is_claimed_when_it_is(yard: Yard) -> None:
    await yard.bury()
    await yard.enqueue(1, run_at=yard.clock.now() + SECOND // 2)
    claim = await yard.claim(5)
    assert (claim.jobs, claim.searched, claim.next_due) == ([], True, yard.clock.now() + SECOND // 2)
    claim = await yard.claim(5)
    assert (claim.jobs, claim.searched, claim.next_due) == ([], False, yard.clock.now() + SECOND // 2)
    [sooner] = await yard.enqueue(1, run_at=yard.clock.now() + SECOND // 10)
    assert (await yard.claim(5)).next_due == yard.clock.now() + SECOND // 10
    yard.clock.advance(0.1)
    assert await yard.ids(5) == [sooner]
    yard.clock.advance(0.4)
    assert len(await yard.ids(5)) == 1


async def test_future_jobs_of_a_higher_priority_are_not_in_the_way_of_the_trail(yard: Yard) -> None:
    """The first live row of the queue is found at once then, and what is dead lies behind it."""
    await yard.bury()
    due = yard.clock.now() + SECOND // 2
    [future] = await yard.enqueue(1, priority=9, run_at=due)
    first, *others = await yard.enqueue(5)
    assert await yard.ids() == [first]
    claim = await yard.claim(10)
    assert ([job.id for job in claim.jobs], claim.searched, claim.next_due) == (others, False, due)
    yard.clock.advance(0.5)
    claim = await yard.claim(10)
    assert ([job.id for job in claim.jobs], claim.searched) == ([future], False)


async def test_job_whose_transaction_lasts_a_moment_is_found_on_the_trail(yard: Yard) -> None:
    await yard.bury()
    await yard.enqueue(5)
    assert (await yard.claim(1)).searched
    late = await _enqueued_late(yard, claim_hints.LATE)
    assert late in await yard.ids(10)


async def _enqueued_late(yard: Yard, micros: int) -> str:
    """A job whose transaction commits so long after it enqueued, while others come and go."""
    connection = await asyncpg.connect(yard.driver.dsn)
    try:
        async with connection.transaction():
            with yard.driver.transaction(connection):
                [answer] = await yard.driver.enqueue([yard.new()])
            yard.clock.advance(micros / SECOND / 2)
            await yard.enqueue(5)
            yard.clock.advance(micros / SECOND / 2)
            assert answer.id not in await yard.ids(500)
    finally:
        await connection.close()
    return answer.id


async def test_paused_queue_gives_nothing_on_the_trail_and_goes_on_where_it_was(yard: Yard) -> None:
    for queue in "ab":
        await yard.bury(queue)
    first, second = await yard.enqueue(2, "a")
    [other] = await yard.enqueue(1, "b")
    assert await yard.ids() == [first]
    await yard.driver.pause("a", True)
    claim = await yard.claim(5)
    assert ([job.id for job in claim.jobs], claim.searched) == ([other], False)
    await yard.driver.pause("a", False)
    claim = await yard.claim(5)
    assert ([job.id for job in claim.jobs], claim.searched) == ([second], False)


@pytest.mark.parametrize("queues", ["a", "ab"], ids=["one queue", "several"])
async def test_nothing_overtakes_an_at_most_once_job_on_the_trail(yard: Yard, queues: str) -> None:
    for queue in queues:
        await yard.bury(queue)
    first, *_ = await yard.enqueue(2, "a")
    [once] = await yard.enqueue(1, queues[-1], delivery=Delivery.AT_MOST_ONCE)
    await yard.enqueue(2, "a")
    assert await yard.ids(once_limit=0) == [first]
    yard.clock.advance(0.3)
    assert len(await yard.ids(10, once_limit=0)) == 1
    assert await yard.ids(10, once_limit=0) == []
    assert (await yard.ids(10, once_limit=1))[0] == once


async def test_suspects_are_told_of_and_found_beside_the_trail(yard: Yard) -> None:
    job, *_ = await yard.bury()
    await yard.set_out()
    assert (await yard.claim()).suspects_waiting is False
    await yard.put_back(job, suspect=True)
    claim = await yard.claim()
    assert (claim.jobs, claim.suspects_waiting, claim.searched) == ([], True, False)
    assert await yard.ids(suspects=True) == [job.id]


async def test_claim_repeated_with_its_token_gives_the_same_jobs_and_the_trail_stays(yard: Yard) -> None:
    await yard.bury()
    await yard.set_out()
    await yard.enqueue(5)
    request = ClaimRequest("again/1", LEASE, 2)
    first, again = await yard.driver.claim(request), await yard.driver.claim(request)
    assert len(first.jobs) == 2
    assert again.jobs == first.jobs
    claim = await yard.claim(5)
    assert (len(claim.jobs), claim.searched) == (3, False)


# -- what a search finds ---------------------------------------------------------------------------


@pytest.mark.parametrize("straggler", ["a queue", "a priority", "put back", "committed late"])
async def test_what_lies_beside_the_trail_is_found_within_the_time(yard: Yard, straggler: str) -> None:
    buried = await yard.bury()
    await yard.enqueue(100)
    assert (await yard.claim(1)).searched
    if straggler == "a queue":
        [job] = await yard.enqueue(queue="elsewhere")
    elif straggler == "a priority":
        [job] = await yard.enqueue(priority=100)
    elif straggler == "put back":
        job = buried[17].id
        await yard.put_back(buried[17])
    else:
        yard.clock.advance(0.1)
        job = await _enqueued_late(yard, 3 * claim_hints.LATE)
    claim = await yard.claim(200)
    assert job not in [each.id for each in claim.jobs]
    assert claim.searched is False
    assert claim.next_due is not None, "the worker would not come again by itself"
    yard.clock.advance((claim.next_due - yard.clock.now()) / SECOND)
    assert yard.clock.monotonic() <= 1 + 2 * claim_hints.SEARCH_SECONDS_MIN
    claim = await yard.claim(200)
    assert ([each.id for each in claim.jobs], claim.searched) == ([job], True)


async def test_lane_that_a_search_has_found_is_on_the_trail_for_good(yard: Yard) -> None:
    await yard.bury()
    await yard.set_out()
    await yard.enqueue(queue="elsewhere", priority=3)
    yard.clock.advance(1)
    assert len(await yard.ids(5)) == 1
    yard.clock.advance(1)
    assert await yard.ids(5) == []  # a search that finds nothing there
    await yard.enqueue(queue="elsewhere", priority=3)
    claim = await yard.claim(5)
    assert (len(claim.jobs), claim.searched) == (1, False)


async def test_worker_is_not_drained_before_everything_was_searched(dsn: str) -> None:
    """With a real worker and the server's clock: one of the jobs lies behind the trail."""
    driver = PostgresDriver(dsn)
    await driver.migrate()
    ran: list[int] = []
    async with Harbor(driver=driver) as harbor, snapshot_held(dsn):

        @harbor.task(name="count")
        async def count(n: int) -> None:
            ran.append(n)

        await count.aenqueue_many([{"n": n} for n in range(DEAD)])
        buried = (await driver.claim(ClaimRequest("worker/1", LEASE, DEAD))).jobs
        await count.aenqueue_many([{"n": DEAD + n} for n in range(50)])
        assert len((await driver.claim(ClaimRequest("worker/2", LEASE, 1))).jobs) == 1
        await driver.settle(
            [
                Transition("worker/1", job.id, job.number, AttemptStatus.RELEASED, State.READY)
                for job in (buried[5], buried[-1])
            ]
        )
        await Worker(harbor).drain()
    assert sorted(ran) == sorted([5, DEAD - 1, *range(DEAD + 1, DEAD + 50)])


# -- when it searches ------------------------------------------------------------------------------

REQUEST = ClaimRequest("worker/1", LEASE, 10)
NOTHING = Claim(0, LEASE, [])
THERE = '[{"queue":"q","rank":0,"from_at":"2026-01-01T00:00:00Z"}]'


@pytest.mark.parametrize(("searched", "pause"), [(0.001, 1.0), (0.5, 5.0), (30.0, 60.0)])
def test_search_takes_no_more_than_a_tenth_of_the_time(searched: float, pause: float) -> None:
    clock = ManualClock()
    known = ClaimHints(clock)
    assert known.look(REQUEST) == SearchPlan(None, search=True)
    known.learn(REQUEST, SearchPlan(), NOTHING, SearchReport(THERE, round(searched * SECOND)))
    clock.advance(pause - 0.001)
    assert known.look(REQUEST) == SearchPlan(THERE, search=False)
    clock.advance(0.001)
    assert known.look(REQUEST) == SearchPlan(THERE, search=True)


def test_search_whose_answer_is_lost_does_not_stop_the_claims() -> None:
    """It may take so long that it is given up: the trail is followed, and the next one waits twice as long."""
    clock = ManualClock()
    known = ClaimHints(clock)
    known.learn(REQUEST, SearchPlan(), NOTHING, SearchReport(THERE, SECOND))
    for pause in (10, 20, 40):
        clock.advance(pause)
        assert known.look(REQUEST).search
        assert not known.look(REQUEST).search


def test_each_set_of_queues_has_a_trail_of_its_own_and_they_are_bounded() -> None:
    known = ClaimHints(ManualClock())
    for number in range(3 * claim_hints.TRAILS_MAX):
        request = ClaimRequest("worker/1", LEASE, 10, queues=(f"q{number}",))
        assert known.look(request) == SearchPlan()
        known.learn(
            request, SearchPlan(), NOTHING, SearchReport(THERE.replace('"q"', f'"q{number}"'), SECOND)
        )
        assert f'"q{number}"' in (known.look(request).trail or "")
    assert len(known._trails) <= claim_hints.TRAILS_MAX


def test_first_trail_leads_to_where_jobs_were_found_before() -> None:
    """A search that finds nothing, since the worker has kept up, would otherwise be repeated by every claim."""
    known = ClaimHints(ManualClock())
    jobs = [
        Claimed("id", "task", "{}", queue, priority, 1, 0, 1, 0, 0)
        for queue, priority in [("q", 5), ("other", 0)]
    ]
    known.learn(REQUEST, SearchPlan(), Claim(SECOND, LEASE, jobs), SearchReport(None, 10))
    assert known.look(REQUEST) == SearchPlan()
    for queues, lanes in [(None, {("q", -5), ("other", 0)}), (("q",), {("q", -5)}), (("new",), set())]:
        request = ClaimRequest("worker/1", LEASE, 10, queues=queues)
        known.learn(request, SearchPlan(), Claim(2 * SECOND, LEASE, []), SearchReport("[]", SECOND))
        trail = msgspec.json.decode(known.look(request).trail or "[]", type=list[HintLane])
        assert {(lane.queue, lane.rank) for lane in trail} == lanes
        assert {lane.from_at for lane in trail} <= {from_micros(2 * SECOND - claim_hints.LATE)}


def test_claim_that_asks_for_no_jobs_leaves_the_trail_alone() -> None:
    clock = ManualClock()
    known = ClaimHints(clock)
    known.learn(REQUEST, SearchPlan(), NOTHING, SearchReport(THERE, SECOND))
    none = ClaimRequest("worker/1", LEASE, 0)
    clock.advance(10)
    assert known.look(none) == SearchPlan()
    known.learn(none, SearchPlan(), NOTHING, SearchReport(None, 0))
    assert known.look(REQUEST) == SearchPlan(THERE, search=True)
