"""Dead jobs by cause."""

from __future__ import annotations

from taskharbor.drivers.memory.reads import record
from taskharbor.drivers.memory.store import Store
from taskharbor.records import GroupRecord, JobFilter, State
from taskharbor.rules.filtering import matches
from taskharbor.rules.grouping import Grouping


def groups(store: Store, where: JobFilter, limit: int, now: int) -> list[GroupRecord]:
    grouping = Grouping()
    dead = (record(store.jobs[job_id], now) for _, job_id in store.endings[State.DEAD].descending())
    grouping.add(job for job in dead if matches(job, where))
    return grouping.largest(limit)
