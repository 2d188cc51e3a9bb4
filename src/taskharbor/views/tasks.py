"""The tasks that live workers know, and what is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from taskharbor.drivers.capabilities import Records
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.views.documents import Document, Time

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor


class TaskDocument(Document):
    """A task that a live worker knows, or a task or tag whose jobs are held."""

    kind: HoldKind
    name: str
    held: bool
    held_by: Annotated[str, Meta(description="Who asked for the hold, if that is known.")] | None
    held_since: Time | None
    workers: Annotated[list[str], Meta(description="The live workers that know the task.")]


class TaskList(Document):
    """The tasks that live workers know, and every task or tag that is held."""

    items: list[TaskDocument]
    next_cursor: None


class HoldFlag(Document):
    """Whether the jobs of a task or a tag are held."""

    kind: HoldKind
    name: str
    held: bool


async def tasks_of(harbor: Harbor) -> TaskList:
    """Read what the workers' records and the holds say: tasks by name, then the tags that are held."""
    known = await harbor.holds.aknown_tasks() if Records.offered_by(harbor.driver) else {}
    holds = {(hold.kind, hold.name): hold for hold in await harbor.holds.alist()}
    named = {(HoldKind.TASK, name) for name in known} | holds.keys()
    items = []
    for kind, name in sorted(named, key=lambda each: (each[0] is HoldKind.TAG, each[1])):
        hold = holds.get((kind, name))
        items.append(
            TaskDocument(
                kind,
                name,
                hold is not None,
                None if hold is None else hold.by,
                None if hold is None else hold.since,
                list(known.get(name, ())) if kind is HoldKind.TASK else [],
            )
        )
    return TaskList(items, None)
