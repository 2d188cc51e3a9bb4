"""`FailingStore`: the memory store of tests. It can be away, and takes part in a caller's transaction."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from taskharbor.clock import Clock
from taskharbor.codec import shorten
from taskharbor.drivers.base import Enqueued, WorkflowEnqueued
from taskharbor.drivers.capabilities import Transactions
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigurationError, StoreUnavailable
from taskharbor.records import NewJob, NewWorkflow
from taskharbor.testing.checks import check_number

# These touch no database in other stores either.
_NEVER_FAIL = frozenset({"close", "wait_for_change"})


class FailingStore(MemoryDriver, Transactions):
    """A memory store that fails when a test says so: `with store.outage(): …`.

    It takes part in `harbor.transaction(connection)`, whatever the connection: if the block ends with an error, the
    jobs that were enqueued in it are gone. A rollback after the block is seen if the connection or session is
    SQLAlchemy's.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self._outages: list[_Outage] = []
        self._stored: ContextVar[_Stored | None] = ContextVar("taskharbor_stored", default=None)

    # -- outages --

    @contextmanager
    def outage(self, *verbs: str, calls: int | None = None) -> Iterator[None]:
        """Raise `StoreUnavailable` from these verbs of the driver, or from all, inside the block.

        With `calls` only that many calls fail; the store then answers again.
        """
        unknown = [verb for verb in verbs if verb not in VERBS]
        if unknown:
            raise ConfigurationError(
                f"no verb of a store is called {shorten(unknown[0])}; they are {', '.join(sorted(VERBS))}"
            )
        if calls is not None:
            check_number(calls, "outage(calls=…)", 0)
        outage = _Outage(frozenset(verbs or VERBS), calls)
        self._outages.append(outage)
        try:
            yield
        finally:
            self._outages.remove(outage)

    def _answer(self, verb: str) -> None:
        """Raise if this verb is to fail."""
        for outage in self._outages:
            if verb in outage.verbs and outage.left != 0:
                if outage.left is not None:
                    outage.left -= 1
                raise StoreUnavailable(f"the store is away, as the test wants it ({verb})")

    # -- a caller's transaction --

    def in_transaction(self) -> bool:
        return self._stored.get() is not None

    def uses_callers_thread(self) -> bool:
        return True

    @contextmanager
    def transaction(self, connection: Any, *, same_database: bool = False) -> Iterator[None]:
        stored = _Stored(self)
        stop_following = _follow_sqlalchemy(connection, stored.remove)
        reset = self._stored.set(stored)
        try:
            yield
        except BaseException:
            stop_following()
            stored.remove()
            raise
        finally:
            self._stored.reset(reset)

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> list[Enqueued]:
        answers = await super().enqueue(jobs, now=now)
        if (stored := self._stored.get()) is not None:
            stored.jobs += [answer.id for answer in answers if not answer.existed]
        return answers

    async def enqueue_workflow(
        self, workflow: NewWorkflow, jobs: Sequence[NewJob], *, now: int | None = None
    ) -> WorkflowEnqueued:
        answer = await super().enqueue_workflow(workflow, jobs, now=now)
        stored = self._stored.get()
        if stored is not None and not answer.existed:
            stored.jobs += [job.id for job in jobs]
            stored.workflows.append(answer.id)
        return answer


class _Outage:
    def __init__(self, verbs: frozenset[str], left: int | None) -> None:
        self.verbs = verbs
        self.left = left  # calls that still fail; None for all of them


class _Stored:
    """What was enqueued in one block, so that it can be taken back."""

    def __init__(self, store: FailingStore) -> None:
        self._driver = store
        self.jobs: list[str] = []
        self.workflows: list[str] = []

    def remove(self) -> None:
        store = self._driver._store
        with self._driver._changes.lock:
            for job_id in reversed(self.jobs):  # dependants first
                if job_id in store.jobs:
                    store.delete(store.jobs[job_id])
            for workflow_id in self.workflows:
                workflow = store.workflows.pop(workflow_id, None)
                if workflow is not None and workflow.idempotency_key is not None:
                    store.workflow_keys.pop(workflow.idempotency_key, None)
            self.jobs.clear()
            self.workflows.clear()


def _follow_sqlalchemy(connection: Any, undo: Callable[[], None]) -> Callable[[], None]:
    """Call `undo` when this connection or session of SQLAlchemy rolls back; return what ends that."""
    if not type(connection).__module__.startswith("sqlalchemy."):
        return lambda: None
    from sqlalchemy import event

    sync = (
        getattr(connection, "sync_session", None)
        or getattr(connection, "sync_connection", None)
        or connection
    )
    is_session = hasattr(sync, "get_bind")
    rolled_back, committed = ("after_rollback", "after_commit") if is_session else ("rollback", "commit")

    is_over = False  # a listener cannot be removed while it is called

    def stop(*_: Any) -> None:
        nonlocal is_over
        is_over = True

    def roll_back(*_: Any) -> None:
        if not is_over:
            stop()
            undo()

    event.listen(sync, rolled_back, roll_back)
    event.listen(sync, committed, stop)
    return stop


def _failing(verb: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def answer(self: FailingStore, *args: Any, **kwargs: Any) -> Any:
        self._answer(verb)
        return await method(self, *args, **kwargs)

    return answer


VERBS = frozenset(
    name
    for name, _ in inspect.getmembers(FailingStore, inspect.iscoroutinefunction)
    if not name.startswith("_") and name not in _NEVER_FAIL
)
for _verb in VERBS:
    setattr(FailingStore, _verb, _failing(_verb, getattr(FailingStore, _verb)))
