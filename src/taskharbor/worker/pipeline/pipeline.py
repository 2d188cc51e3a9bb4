"""`Pipeline`: the jobs between claim and settle, and the events by which the stages of a worker wake each other."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Set

from taskharbor.drivers.base import SETTLE_BYTES, job_size, text_size
from taskharbor.own_tasks import OwnTask
from taskharbor.records import Progress
from taskharbor.rules.aside import held_by
from taskharbor.rules.outcome import Failed, HandedBack, Held, Outcome, Succeeded
from taskharbor.worker.pipeline.execution import Execution
from taskharbor.worker.pipeline.leases import HeldLeases, StoreTime
from taskharbor.worker.pipeline.patient_store import PatientStore

HELD_BYTES = 32 * 1_048_576  # of ended attempts that are not settled yet; above this, no job begins

Ended = tuple[Execution, Outcome, int]  # with the bytes that its settle sends to the store


class Pipeline:
    """The jobs of one run of a worker, by stage: `claimed`, `running`, `ended`.

    The fetcher fills `claimed` and waits for `room`. The executor moves jobs to `running` and, with an outcome, to
    `ended`. The committer waits for `arrived`, settles what has ended, and sets `quiet`.
    """

    def __init__(
        self,
        concurrency: int,
        *,
        store: PatientStore,
        leases: HeldLeases,
        time: StoreTime,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.concurrency = concurrency
        self.store = store
        self.leases = leases
        self.time = time
        self.loop = loop
        self.owner: OwnTask[None] | None = None  # the task that the whole run belongs to
        self.claimed: deque[Execution] = deque()  # not begun
        self.low_water = 0  # `room` is set when `claimed` has fallen to this
        self.starting = 0  # taken from `claimed`, and being prepared
        self.running: dict[Execution, None] = {}
        self.begun = 0  # how many jobs since the start: the fetcher measures the pace by it
        self.ended: list[Ended] = []  # not settled
        self.notes: dict[Execution, Progress] = {}  # progress that is not stored
        self.is_closing = False  # nothing begins any more
        self.holds: frozenset[str] = frozenset()  # labels of the holds in force, as far as this worker knows
        self.is_full = False  # nothing begins until some of `ended` is settled
        self.room = asyncio.Event()  # something has ended, or `claimed` is low
        self.arrived = asyncio.Event()  # there is something to settle, or progress to store
        self.quiet = asyncio.Event()  # everything that ended is settled
        self.quiet.set()
        self.left = asyncio.Event()  # while the worker closes: something has ended
        self._held_bytes = 0

    # -- how full the pipeline is --

    @property
    def free(self) -> int:
        """How many more handlers may run."""
        return max(0, self.concurrency - len(self.running) - self.starting)

    @property
    def unbegun(self) -> int:
        return len(self.claimed) + self.starting

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits or runs. What has ended may not be settled yet."""
        return not self.claimed and not self.running and not self.starting

    def is_idle_but_for(self, abandoned: Set[Execution]) -> bool:
        return not self.claimed and not self.starting and self.running.keys() <= abandoned

    @property
    def is_done(self) -> bool:
        """Whether nothing waits or runs, and everything that ended is settled."""
        return self.is_idle and self.quiet.is_set()

    @property
    def fits_one_settle(self) -> bool:
        return self._held_bytes <= SETTLE_BYTES

    # -- what happens to a job --

    def end(self, execution: Execution, outcome: Outcome) -> None:
        """Hand an ended attempt to the committer."""
        size = 0
        if type(outcome) is Succeeded:
            if outcome.result is not None:
                size = text_size(outcome.result)
        elif type(outcome) is Failed:
            size = text_size(outcome.error) + text_size(outcome.traceback)
        if execution.children:
            size += sum(map(job_size, execution.children))
        execution.has_ended = True
        self.ended.append((execution, outcome, size))
        self._held_bytes += size + len(execution.claimed.payload)
        if self._held_bytes > HELD_BYTES:
            self.is_full = True
        if len(self.ended) == 1:
            self._announce()
        if self.is_closing:
            self.left.set()

    def settled(self, settled: Iterable[Ended]) -> None:
        """Forget attempts that are settled, or that end when their lease expires."""
        self._held_bytes -= sum([size + len(execution.claimed.payload) for execution, _, size in settled])
        if self._held_bytes <= HELD_BYTES:
            self.is_full = False

    def drop(self, execution: Execution) -> None:
        """Forget a job whose lease is lost: there is nothing to settle."""
        self.leases.settled(execution)
        self.room.set()
        self.left.set()

    def hand_back(self, unwanted: Callable[[Execution], bool] = lambda _: True) -> None:
        """Hand back the claimed jobs that `unwanted` selects, by default all of them."""
        taken = [execution for execution in self.claimed if unwanted(execution)]
        if taken:
            kept = [execution for execution in self.claimed if not unwanted(execution)]
            self.claimed.clear()
            self.claimed.extend(kept)
        for execution in taken:
            self.end(execution, HandedBack())

    def heed_holds(self, holds: frozenset[str]) -> None:
        """Put the claimed jobs aside that these holds keep back; those that come are looked at as well."""
        self.holds = holds
        if holds and self.claimed:
            kept = self.put_aside(self.claimed)
            self.claimed.clear()
            self.claimed.extend(kept)

    def put_aside(self, executions: Iterable[Execution]) -> list[Execution]:
        """End those of these that a hold keeps back; return the others."""
        kept = []
        for execution in executions:
            label = held_by(self.holds, execution.claimed.task, execution.options.tags)
            if label is None:
                kept.append(execution)
            else:
                self.end(execution, Held(label))
        return kept

    def note(self, execution: Execution, progress: Progress) -> None:
        """Let the committer store the progress of a job; a later note replaces this one."""
        self.notes[execution] = progress
        self._announce()

    def _announce(self) -> None:
        self.arrived.set()
        self.quiet.clear()
