"""Colleagues: what the other live workers of the store know, as their presence records say."""

from __future__ import annotations

from collections.abc import Sequence

from taskharbor import builtin_tasks
from taskharbor.client.harbor import Harbor
from taskharbor.clock import Clock
from taskharbor.drivers.base import Driver, WorkerRecord
from taskharbor.drivers.capabilities import Holds, Records
from taskharbor.drivers.contract.holds import LABELS_MAX
from taskharbor.drivers.typed_records import WORKERS
from taskharbor.errors import StoreError
from taskharbor.rules.aside import known_elsewhere, task_label, task_of
from taskharbor.worker.pipeline.leases import StoreTime

TASKS_MAX = 1_000  # names in a record; of a worker that knows more, it is not known which
TASKS_BYTES_MAX = 32_000
TRUSTED_SECONDS = 5.0  # how long a record that names a task is believed
DOUBTED_SECONDS = 0.25  # how soon the records are read again if none names it: a worker may have just begun


def known_tasks(harbor: Harbor) -> tuple[str, ...] | None:
    """Return the names of all tasks that a worker of this harbor knows; None if there are too many to tell."""
    built_in = {name for name in builtin_tasks.EVERYWHERE if builtin_tasks.runnable_task_of(harbor, name)}
    names = sorted(harbor.tasks.keys() | built_in)
    is_short = len(names) <= TASKS_MAX and sum(len(name.encode()) for name in names) <= TASKS_BYTES_MAX
    return tuple(names) if is_short else None


class Colleagues:
    """Says which tasks another live worker takes, and into which places aside this worker looks.

    The store is asked only about tasks that this worker does not know.
    """

    def __init__(self, driver: Driver, clock: Clock, harbor: Harbor, worker: str, time: StoreTime) -> None:
        self._driver = driver
        self._clock = clock
        self._harbor = harbor
        self._worker = worker
        self._time = time
        self._records: Sequence[WorkerRecord] = ()
        self._read_at = float("-inf")
        self._left_until: dict[str, float] = {}  # labels that a colleague takes care of, after all
        self._delayed: set[str] = set()  # labels of jobs that this worker has put back with a delay
        # Without records no worker can be known; without places aside a job could not wait for it.
        self.are_known = bool(Records.offered_by(driver) and Holds.offered_by(driver))

    async def know(self, task: str, queue: str) -> bool:
        """Whether another live worker may know this task and serves this queue."""
        label = task_label(task)
        if not await self._any_knows(task, (queue,)):
            if len(self._delayed) < LABELS_MAX:
                self._delayed.add(label)
            return False
        if len(self._left_until) >= LABELS_MAX:
            self._left_until.clear()
        self._left_until[label] = self._clock.monotonic() + TRUSTED_SECONDS
        return True

    async def to_look_into(
        self, labels: Sequence[str], queues: tuple[str, ...] | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Which of these places aside this worker looks into, and those of them whose task it knows.

        Those are the tasks that it knows, the tasks that no live worker knows, and the holds that are over. A task for
        which a colleague has come counts as known once more: what this worker has delayed there is due again.
        """
        known: list[str] = []
        others: list[str] = []
        now = self._clock.monotonic()
        for label in labels:
            task = task_of(label)
            if task is None:
                others.append(label)
            elif self._knows(task):
                known.append(label)
            elif self._left_until.get(label, now) > now:
                continue
            elif not await self._any_knows(task, queues):
                others.append(label)
            elif label in self._delayed:
                self._delayed.discard(label)
                known.append(label)
        return (*known, *others), tuple(known)

    def _knows(self, task: str) -> bool:
        return task in self._harbor.tasks or bool(builtin_tasks.runnable_task_of(self._harbor, task))

    async def _any_knows(self, task: str, queues: tuple[str, ...] | None) -> bool:
        """Ask the records at hand; read them again if they are old, or if none names the task."""
        age = self._clock.monotonic() - self._read_at
        if age < TRUSTED_SECONDS and self._is_known(task, queues):
            return True
        if age >= DOUBTED_SECONDS:
            await self._read()
        return self._is_known(task, queues)

    def _is_known(self, task: str, queues: tuple[str, ...] | None) -> bool:
        now = self._time.now()
        others = [record for record in self._records if record.name != self._worker]
        return any(known_elsewhere(record, task, queues, now) for record in others)

    async def _read(self) -> None:
        if not self.are_known:
            return
        try:
            self._records = await WORKERS.all(self._driver)
            self._read_at = self._clock.monotonic()
        except StoreError:  # what is at hand counts until it expires; the settle waits for the store
            return
