"""What keeps a job from running: the jobs before it, the jobs that it waits for, what workers hold."""

from __future__ import annotations

from taskharbor.conformance.store import HOUR, LEASE, SECOND, Chapter, Store
from taskharbor.drivers import capabilities
from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.records import JobFilter

LIMIT = 100
_ALL = JobFilter()


class Waits(Chapter):
    needs = capabilities.Waits

    def before(
        self, store: Store, job_id: str, queues: tuple[str, ...] | None = None, limit: int = LIMIT
    ) -> int | None:
        waits = capabilities.Waits.of(store.driver)
        return store.run(waits.count_before(job_id, queues, limit, now=store.now))

    def waits_for(self, store: Store, job_id: str, limit: int = LIMIT) -> list[str]:
        return store.run(capabilities.Waits.of(store.driver).waits_for(job_id, limit))

    def begun_at(self, store: Store, job_id: str) -> int | None:
        return store.run(capabilities.Waits.of(store.driver).begun_at(job_id))

    def loads(self, store: Store) -> dict[str, WorkerLoad]:
        return store.run(capabilities.Waits.of(store.driver).worker_loads(now=store.now))

    # -- the jobs before one --

    def test_jobs_before_one_are_those_that_a_claim_takes_before_it(self, store: Store) -> None:
        """By priority, then due time, then id, over all the queues; the count is its index in the claim."""
        for queue, priority, late in [
            ("b", 0, 3), ("a", 5, 0), ("a", 0, 3), ("c", -5, 9), ("a", 0, 7), ("b", 5, 2), ("c", 0, 3), ("b", -100, 1),
        ]:  # fmt: skip
            store.enqueue(queue=queue, priority=priority, run_at=store.now - late * SECOND)
        store.enqueue(queue="a", priority=100, run_at=store.now + HOUR)
        ids = [job.id for job in store.run(store.driver.list(_ALL, now=store.now)).jobs]
        for queues in (None, ("a",), ("b", "a"), ("c", "b", "a", "a", "unknown")):
            places = {job_id: self.before(store, job_id, queues) for job_id in ids}
            held = store.claim(queues=queues)
            assert [places[each.id] for each in held] == list(range(len(held)))
            for each in held:
                store.hand_back(each)

    def test_only_a_ready_job_stands_in_the_line(self, store: Store) -> None:
        """Not one that is ahead, running, finished or unknown."""
        ahead = store.enqueue(delay=SECOND)
        held = store.running()
        assert self.before(store, ahead) is None
        assert self.before(store, held.id) is None
        store.succeed(held)
        assert self.before(store, held.id) is None
        assert self.before(store, store.new_id()) is None
        store.pass_time(SECOND)
        assert self.before(store, ahead) == 0

    def test_jobs_that_are_not_due_stand_before_none(self, store: Store) -> None:
        """Whatever their priority."""
        store.enqueue(priority=9, delay=1)
        store.enqueue(delay=1)
        last = store.enqueue()
        assert self.before(store, last) == 0
        store.pass_time(1)
        assert self.before(store, last) == 1

    def test_count_of_jobs_before_one_ends_at_its_limit(self, store: Store) -> None:
        """Over several queues and priorities together."""
        for priority in (2, 1, 0):
            for queue in ("a", "b"):
                store.enqueue_all(*(store.new(queue=queue, priority=priority) for _ in range(3)))
        last = store.enqueue(queue="c")
        assert [self.before(store, last, limit=limit) for limit in (1, 5, 17, 18, 19)] == [1, 5, 17, 18, 18]

    def test_jobs_of_a_paused_queue_stand_before_none(self, store: Store) -> None:
        """A claim passes them over."""
        store.enqueue(queue="a")
        store.enqueue(queue="b")
        last = store.enqueue(queue="c")
        store.run(store.driver.pause("a", True))
        assert self.before(store, last) == self.before(store, last, ("a", "b", "c")) == 1
        store.run(store.driver.pause("a", False))
        assert self.before(store, last) == 2

    def test_suspect_stands_in_the_line_of_the_suspects(self, store: Store) -> None:
        """No other job stands before it, and it stands before no other job."""
        for _ in range(2):
            store.lose(store.running(), suspect=True)
        plain = store.enqueue()
        first, second = sorted(
            job.id for job in store.run(store.driver.list(_ALL, now=store.now)).jobs if job.suspect
        )
        assert [self.before(store, each) for each in (first, second, plain)] == [0, 1, 0]

    # -- the jobs that one waits for --

    def test_waiting_job_waits_for_those_that_have_not_succeeded(self, store: Store) -> None:
        """In the order it named them, at most as many as asked for; none once it is runnable."""
        members = [store.enqueue(priority=priority) for priority in (1, 3, 2)]
        waiting = store.enqueue(depends_on=tuple(reversed(members)))
        assert self.waits_for(store, waiting) == members[::-1]
        assert self.waits_for(store, waiting, limit=2) == members[:0:-1]
        store.succeed(store.claim_one(limit=1))
        assert self.waits_for(store, waiting) == [members[2], members[0]]
        store.bury(store.claim_one(limit=1))
        assert self.waits_for(store, waiting) == [members[2], members[0]]
        assert self.waits_for(store, members[0]) == self.waits_for(store, store.new_id()) == []
        store.succeed(store.claim_one(limit=1))
        assert self.waits_for(store, waiting) == [members[2]]

    # -- what workers hold --

    def test_running_job_began_when_the_latest_heartbeat_said(self, store: Store) -> None:
        """Before that heartbeat, and once it is settled, the store knows of none."""
        held = store.running()
        assert self.begun_at(store, held.id) is None
        began = store.now
        store.pass_time(SECOND)
        store.extend(held.token, running=((held.id, began),))
        assert self.begun_at(store, held.id) == began
        store.hand_back(held)
        assert self.begun_at(store, held.id) is None
        again = store.claim_one()
        assert self.begun_at(store, again.id) is None
        assert self.begun_at(store, store.new_id()) is None

    def test_load_of_a_worker_is_what_its_live_leases_hold(self, store: Store) -> None:
        """All that is not settled, and what its heartbeats named as running."""
        assert self.loads(store) == {}
        for _ in range(5):
            store.enqueue()
        first = store.claim("w/1", limit=3)
        store.claim("w/2", limit=1)
        store.claim("v/1", limit=1)
        store.extend("w/1", running=tuple((held.id, store.now) for held in first[:2]))
        assert self.loads(store) == {"w": WorkerLoad(4, 2), "v": WorkerLoad(1, 0)}
        store.succeed(first[2])
        assert self.loads(store) == {"w": WorkerLoad(3, 2), "v": WorkerLoad(1, 0)}
        store.pass_time(LEASE - 1)
        store.extend("w/2")
        store.pass_time(1)
        assert self.loads(store) == {"w": WorkerLoad(1, 0)}
