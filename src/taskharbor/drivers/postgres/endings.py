"""Dead jobs by cause."""

from __future__ import annotations

from taskharbor.drivers.postgres.connections import Session
from taskharbor.drivers.stored import Reading
from taskharbor.records import GroupRecord, JobFilter
from taskharbor.rules.grouping import listed


async def groups(session: Session, where: JobFilter, limit: int) -> list[GroupRecord]:
    asked = (
        where.fingerprint, where.queue, where.task, where.reason, where.finished_after, where.finished_before,
        max(limit, 0),
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
        for row in await session.rows("groups", *asked)
    ]
