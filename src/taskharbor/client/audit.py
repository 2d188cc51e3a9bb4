"""`harbor.audit`: who did what and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Self

import msgspec
from msgspec import Struct

from taskharbor.acting import checked_actor
from taskharbor.client.filters import checked_cursor, checked_limit
from taskharbor.client.operating import Operator
from taskharbor.client.options import checked_id, checked_instant
from taskharbor.client.sync_methods import sync_method
from taskharbor.clock import from_micros
from taskharbor.codec import shorten
from taskharbor.drivers.base import ActionFilter, ActionRecord, Verb
from taskharbor.drivers.capabilities import Audit as AuditCapability
from taskharbor.drivers.contract.audit import VerbName
from taskharbor.errors import AccessDenied, ConfigurationError


class AuditEntry(Struct, frozen=True):
    """An action as it was recorded. No payload, result or secret is in it."""

    id: str
    at: datetime  # when its first change was made
    verb: str  # such as job.cancel or queue.pause; see `Verb`
    actor: str | None  # who; None: not known
    job_id: str | None  # if it concerned one job
    subject: str | None  # the name or id of the queue, schedule, workflow, token or task that it concerned
    filter: dict[str, Any] | None  # what selected the jobs of a bulk action; {} for all of them
    details: dict[str, Any] | None  # what was asked for; `***` for a value that is not recorded
    count: int  # jobs that it changed, or asked to end; 0 for what is not done to jobs

    @classmethod
    def of(cls, record: ActionRecord) -> Self:
        return cls(
            record.id,
            from_micros(record.at),
            record.verb,
            record.actor,
            record.job_id,
            record.subject,
            _read(record.filter),
            _read(record.details),
            record.count,
        )


class AuditPage(list[AuditEntry]):
    """A page of actions; `next_cursor` continues the list, and is None at its end."""

    def __init__(self, entries: list[AuditEntry], next_cursor: str | None) -> None:
        super().__init__(entries)
        self.next_cursor = next_cursor


class Audit(Operator):
    """`harbor.audit`: the newest 10,000 actions."""

    async def alist(
        self,
        *,
        actor: str | None = None,
        verb: Verb | VerbName | None = None,
        job: object = None,
        after: datetime | None = None,
        before: datetime | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> AuditPage:
        """List matching actions, the latest first.

        `job` finds the actions on this one job, and the latest one that changed it, which may be a bulk action. `after`
        is the first instant, `before` the first one that no longer counts.
        """
        return await self._page(self._filter(actor, verb, job, after, before), cursor, limit)

    list = sync_method(alist)

    async def aget(self, id: object) -> AuditEntry | None:
        """Return the action with this id, such as a job's `action_id`; None if it is not kept any more."""
        [record] = await AuditCapability.of(self._driver).get_actions([checked_id(id)])
        return None if record is None else AuditEntry.of(record)

    get = sync_method(aget)

    def _filter(
        self,
        actor: str | None,
        verb: str | None,
        job: object,
        after: datetime | None,
        before: datetime | None,
        *,
        tokens: bool = True,
    ) -> ActionFilter:
        return ActionFilter(
            None if actor is None else checked_actor(actor),
            None if verb is None else _checked_verb(verb),
            None if job is None else checked_id(job),
            None if after is None else checked_instant(after, "after"),
            None if before is None else checked_instant(before, "before"),
            tokens,
        )

    async def _page(self, where: ActionFilter, cursor: str | None, limit: int) -> AuditPage:
        audit = AuditCapability.of(self._driver)
        page = await audit.actions(where, cursor=checked_cursor(cursor), limit=checked_limit(limit))
        return AuditPage([AuditEntry.of(record) for record in page.actions], page.next_cursor)

    async def _latest_of(self, action_id: str | None) -> AuditEntry | None:
        """Return the action that a job names. A role that may not read the audit sees the job without it."""
        audit = AuditCapability.offered_by(self._driver)
        if action_id is None or audit is None:
            return None
        try:
            [record] = await audit.get_actions([action_id])
        except AccessDenied:
            return None
        return None if record is None else AuditEntry.of(record)


def _checked_verb(value: object) -> str:
    try:
        return Verb(str(value))
    except ValueError:
        raise ConfigurationError(
            f"no action is called {shorten(value)}; the verbs are {', '.join(Verb)}"
        ) from None


def _read(text: str | None) -> dict[str, Any] | None:
    """Return the stored JSON. What a newer version or a hand has stored may be no object."""
    if text is None:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError):
        return {"unreadable": text}
    return dict(found) if isinstance(found, Mapping) else {"unreadable": text}
