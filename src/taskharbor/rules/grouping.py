"""Grouping: dead jobs by the fingerprint of what they died of."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from taskharbor.records import GROUP_NAMES_MAX, GroupRecord, JobFilter, JobRecord, State
from taskharbor.rules.fingerprint import ERROR_SHOWN

GROUPED_BY = frozenset(
    {"state", "queue", "task", "reason", "fingerprint", "finished_after", "finished_before"}
)


def is_stored_with_dead(where: JobFilter) -> bool:
    """Say whether a store's `groups` takes this filter: it asks only for what an index has of each dead job."""
    asked = {name for name in JobFilter.__struct_fields__ if getattr(where, name) not in (None, ())}
    return asked <= GROUPED_BY


def is_kept(where: JobFilter) -> bool:
    """Say whether the counts that a store keeps of its groups answer this: by queue, task and fingerprint."""
    return where.reason is None and where.finished_after is None and where.finished_before is None


class _Gathered(Struct):
    sample: JobRecord
    first_seen: int
    last_seen: int
    count: int = 0
    tasks: set[str] = field(default_factory=set)
    versions: set[str] = field(default_factory=set)


class Grouping:
    """Adds dead jobs to their groups, in any order."""

    def __init__(self) -> None:
        self._groups: dict[str, _Gathered] = {}

    def add(self, jobs: Iterable[JobRecord]) -> None:
        for job in jobs:
            if job.state is not State.DEAD or job.fingerprint is None:
                continue
            seen = job.finished_at or 0
            group = self._groups.setdefault(job.fingerprint, _Gathered(job, seen, seen))
            group.count += 1
            group.first_seen, group.last_seen = min(group.first_seen, seen), max(group.last_seen, seen)
            group.tasks.add(job.task)
            if job.code_version is not None:
                group.versions.add(job.code_version)
            if job.id > group.sample.id:
                group.sample = job

    def largest(self, limit: int) -> list[GroupRecord]:
        found = [
            GroupRecord(
                fingerprint,
                each.count,
                each.first_seen,
                each.last_seen,
                listed(each.tasks),
                listed(each.versions),
                each.sample.id,
                None if each.sample.error is None else each.sample.error[:ERROR_SHOWN],
            )
            for fingerprint, each in self._groups.items()
        ]
        return sorted(found, key=lambda group: (-group.count, group.fingerprint))[: max(limit, 0)]


def listed(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that a group lists, sorted."""
    return tuple(sorted(names)[:GROUP_NAMES_MAX])
