"""Groups: each failure keeps its fingerprint and the version of its code, and dead jobs are grouped by them."""

from __future__ import annotations

from typing import Any

from taskharbor.conformance.store import HOUR, MINUTE, Chapter, Held, Store
from taskharbor.drivers.base import DeadLetter, Delete, Discard, Occurrence, Requeue
from taskharbor.drivers.capabilities import Groups as Capability
from taskharbor.records import GROUP_NAMES_MAX, AttemptStatus, GroupRecord, JobFilter, Reason, State
from taskharbor.rules.fingerprint import ERROR_SHOWN, of_kind

A, B, C = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc"


class Groups(Chapter):
    def test_failure_keeps_its_fingerprint_and_the_version_of_its_code(self, store: Store) -> None:
        """Whether it is retried or the last one; the job shows the latest one's, and after a success none."""
        held = store.running()
        store.fail(held, fingerprint=A, code_version="1.0")
        assert (store.job(held.id).fingerprint, store.job(held.id).code_version) == (A, "1.0")
        store.lose(store.claim_one(), fingerprint=B)
        store.succeed(store.claim_one())
        rows = store.history(held.id)
        assert [(row.fingerprint, row.code_version) for row in rows] == [(None, None), (B, None), (A, "1.0")]
        assert store.job(held.id).fingerprint is None

    def test_dead_job_always_has_a_fingerprint(self, store: Store) -> None:
        """Its latest attempt's; without one, that of its task and reason."""
        known, unknown, waiting = store.running(), store.running(), store.enqueue()
        store.bury(known, fingerprint=A)
        store.settle(unknown, AttemptStatus.LOST, State.DEAD, reason=Reason.POISON)
        store.do(DeadLetter(), waiting)
        found = [store.job(each).fingerprint for each in (known.id, unknown.id, waiting)]
        assert found == [A, of_kind("test:task", Reason.POISON), of_kind("test:task", Reason.OPERATOR)]
        assert [group.fingerprint for group in _groups(store)] == sorted(f for f in found if f)

    def test_groups_say_how_many_since_when_and_where(self, store: Store) -> None:
        """Count, first and last death, tasks, versions, and the newest job with its error; the largest group first."""
        begin = store.now
        first = _dead(store, A, task="t", code_version="1.0", error="x" * 300)
        store.pass_time(MINUTE)
        _dead(store, B, task="u")
        store.pass_time(MINUTE)
        last = _dead(store, A, task="s", code_version="1.1", error="y" * 300)
        assert first < last
        assert _groups(store) == [
            GroupRecord(A, 2, begin, begin + 2 * MINUTE, ("s", "t"), ("1.0", "1.1"), last, "y" * ERROR_SHOWN),
            GroupRecord(
                B, 1, begin + MINUTE, begin + MINUTE, ("u",), (), store.listed_ids(task="u")[0], "boom"
            ),
        ]

    def test_groups_come_by_size_then_by_fingerprint_up_to_the_limit(self, store: Store) -> None:
        """The largest group is the cause that matters most."""
        for fingerprint in (C, A, B, C, C, B, A):
            _dead(store, fingerprint)
        assert [(group.fingerprint, group.count) for group in _groups(store)] == [(C, 3), (A, 2), (B, 2)]
        assert [group.fingerprint for group in _groups(store, limit=2)] == [C, A]
        assert _groups(store, limit=0) == []

    def test_group_names_at_most_twenty_tasks_and_versions(self, store: Store) -> None:
        """The first ones of the alphabet: a list of groups stays short."""
        for n in reversed(range(GROUP_NAMES_MAX + 1)):
            _dead(store, A, task=f"task-{n:02}", code_version=f"1.{n:02}")
        [group] = _groups(store)
        assert group.count == GROUP_NAMES_MAX + 1
        assert group.tasks == tuple(f"task-{n:02}" for n in range(GROUP_NAMES_MAX))
        assert group.versions == tuple(f"1.{n:02}" for n in range(GROUP_NAMES_MAX))

    def test_groups_of_a_filter_count_what_matches_it(self, store: Store) -> None:
        """By queue, task, reason, fingerprint and time of death; the sample matches as well."""
        here = _dead(store, A, queue="a", task="t")
        store.pass_time(MINUTE)
        since = store.now
        there = _dead(store, A, queue="b", task="u", reason=Reason.UNRECOVERABLE)
        for where, wanted in (
            ({"queue": "a"}, here),
            ({"task": "t"}, here),
            ({"reason": Reason.EXHAUSTED}, here),
            ({"finished_before": since}, here),
            ({"queue": "b", "task": "u"}, there),
            ({"reason": Reason.UNRECOVERABLE}, there),
            ({"finished_after": since}, there),
        ):
            assert [(group.count, group.sample_id) for group in _groups(store, **where)] == [(1, wanted)]
        assert [group.count for group in _groups(store, fingerprint=A)] == [2]
        assert _groups(store, fingerprint=B) == []

    def test_group_of_a_queue_or_a_task_is_as_whole_as_that_of_all(self, store: Store) -> None:
        """Each with its own count, times, tasks, versions and newest job, also after some of its jobs have left it."""
        begin = store.now
        jobs: list[str] = []
        for n, (queue, task) in enumerate((("a", "t"), ("b", "t"), ("a", "u"), ("a", "t"), ("b", "u"))):
            jobs.append(_dead(store, A, queue=queue, task=task, code_version=f"1.{n}"))
            store.pass_time(MINUTE)

        def group(last: int, first: int, tasks: str, *versions: int) -> GroupRecord:
            seen = begin + first * MINUTE, begin + last * MINUTE
            named = tuple(f"1.{n}" for n in versions)
            return GroupRecord(A, len(versions), *seen, tuple(tasks), named, jobs[last], "boom")

        assert _groups(store, queue="a") == [group(3, 0, "tu", 0, 2, 3)]
        assert _groups(store, queue="b") == [group(4, 1, "tu", 1, 4)]
        assert _groups(store, task="t") == [group(3, 0, "t", 0, 1, 3)]
        assert _groups(store, queue="a", task="t") == [group(3, 0, "t", 0, 3)]
        assert _groups(store, queue="a", fingerprint=B) == _groups(store, queue="c") == []
        store.do(Delete(), jobs[0])
        store.do(Requeue(), jobs[4])
        assert _groups(store, queue="a") == [group(3, 2, "tu", 2, 3)]
        assert _groups(store, queue="b") == [group(1, 1, "t", 1)]
        assert _groups(store, task="u") == [group(2, 2, "u", 2)]
        assert _groups(store) == [group(3, 1, "tu", 1, 2, 3)]

    def test_job_leaves_its_group_when_it_is_dead_no_more(self, store: Store) -> None:
        """Requeued, discarded or deleted; one that dies again counts in the group of its new failure."""
        requeued, discarded, deleted, stays = (_dead(store, A) for _ in range(4))
        store.do(Requeue(), requeued)
        store.do(Discard(), discarded)
        store.do(Delete(), deleted)
        assert [(group.fingerprint, group.count, group.sample_id) for group in _groups(store)] == [
            (A, 1, stays)
        ]
        store.bury(store.claim_one(), fingerprint=B)
        assert [(group.fingerprint, group.count) for group in _groups(store)] == [(A, 1), (B, 1)]

    def test_dead_letter_of_a_schedule_is_in_the_group_of_its_run(self, store: Store) -> None:
        """The copy has the fingerprint of the occurrence that failed."""
        held = store.running(due_at=store.now)
        copy = store.new()
        store.bury(
            held,
            fingerprint=A,
            code_version="2",
            occurrence=Occurrence(store.now + HOUR, 1),
            dead_letter=copy,
        )
        [group] = _groups(store)
        assert (group.fingerprint, group.sample_id, group.versions) == (A, copy.id, ("2",))
        assert store.history(copy.id)[0].fingerprint == A


def _groups(store: Store, limit: int = 100, **where: Any) -> list[GroupRecord]:
    store.need(Capability)
    asked = JobFilter(state=State.DEAD, **where)
    return store.run(Capability.of(store.driver).groups(asked, limit))


def _dead(store: Store, fingerprint: str, **fields: Any) -> str:
    told = {name: fields.pop(name) for name in ("error", "code_version", "reason") if name in fields}
    held: Held = store.running(**fields)
    store.bury(held, fingerprint=fingerprint, **told)
    return held.id
