"""`harbor.holds`: keep the jobs of a task or a tag back, without a deployment, and let them run again."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from taskharbor.client.actions import new_action
from taskharbor.client.operating import Operator
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.transaction import refuse_inside_transaction
from taskharbor.clock import from_micros
from taskharbor.codec import checked_name
from taskharbor.drivers.base import Verb
from taskharbor.drivers.capabilities import Audit, Holds, Records
from taskharbor.drivers.contract.audit import Action
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.errors import ConfigurationError


class Hold(Struct, frozen=True):
    """A hold that is in force."""

    kind: HoldKind
    name: str
    by: str | None  # who asked for it, if that is known
    since: datetime


class Holding(Operator):
    """`harbor.holds`"""

    async def alist(self) -> list[Hold]:
        """List every hold that is in force, by kind and name."""
        found = await Holds.of(self._driver).holds()
        return [Hold(each.kind, each.name, each.by, from_micros(each.since)) for each in found]

    list = sync_method(alist)

    async def ahold(self, *, task: str | None = None, tag: str | None = None) -> bool:
        """Keep the jobs of a task or of a tag back; return False if they are held already.

        No worker begins them; they keep their state, queue, priority and place. Running jobs continue.
        """
        kind, name = _one_of(task, tag)
        refuse_inside_transaction(self._harbor, "holds.hold()")
        action = _action(self._driver, Verb.HOLD, kind, name)
        return await Holds.of(self._driver).hold(kind, name, action=action)

    hold = sync_method(ahold)

    async def arelease(self, *, task: str | None = None, tag: str | None = None) -> bool:
        """Let the jobs of a task or of a tag run again; return False if they were not held."""
        kind, name = _one_of(task, tag)
        refuse_inside_transaction(self._harbor, "holds.release()")
        action = _action(self._driver, Verb.RELEASE, kind, name)
        return await Holds.of(self._driver).release(kind, name, action=action)

    release = sync_method(arelease)

    async def aknown_tasks(self) -> dict[str, tuple[str, ...]]:
        """Return the tasks that live workers know, each with the names of these workers.

        Workers say so every 15 seconds. One that knows very many tasks does not say which.
        """
        known: dict[str, list[str]] = {}
        for worker in await WORKERS.all(Records.of(self._driver)):
            for task in worker.tasks or ():
                known.setdefault(task, []).append(worker.name)
        return {task: tuple(known[task]) for task in sorted(known)}

    known_tasks = sync_method(aknown_tasks)


def _action(driver: object, verb: Verb, kind: HoldKind, name: str) -> Action | None:
    if Audit.offered_by(driver) is None:
        return None
    return new_action(verb, subject=name, details={"kind": str(kind)})


def _one_of(task: str | None, tag: str | None) -> tuple[HoldKind, str]:
    if (task is None) == (tag is None):
        given = "both" if task is not None else "neither"
        raise ConfigurationError(f"a hold is of a task or of a tag: give task=… or tag=…, not {given}")
    if task is not None:
        return HoldKind.TASK, checked_name("task", task)
    return HoldKind.TAG, checked_name("tag", tag)
