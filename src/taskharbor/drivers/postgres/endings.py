"""Dead jobs by cause."""

from __future__ import annotations

from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.stored import Reading
from taskharbor.records import GroupRecord, JobFilter
from taskharbor.rules.grouping import is_kept, listed


async def groups(session: Session, where: JobFilter, limit: int) -> list[GroupRecord]:
    most = max(limit, 0)
    if is_kept(where):
        rows = await session.rows("groups", where.fingerprint, where.queue, where.task, most)
    else:
        rows = await session.rows(
            "groups_by_filter", where.fingerprint, where.queue, where.task, where.reason, where.finished_after,
            where.finished_before, most,
        )  # fmt: skip
    read = Reading()
    return [
        GroupRecord(
            row["fingerprint"],
            row["jobs"],
            read.instant("finished_at", row["first_at"]),
            read.instant("finished_at", row["last_at"]),
            listed(row["tasks"]),
            listed(row["versions"]),
            row["sample_id"],
            row["error"],
        )
        for row in rows
    ]
