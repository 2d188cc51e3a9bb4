"""Bugs that are planted in the supervisor, to see whether worlds with fleets find them."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest import mock

from msgspec.structs import replace

from taskharbor.errors import StoreError
from taskharbor.worker.pipeline.lease_keeper import LeaseKeeper
from taskharbor.worker.run import WorkerRun
from taskharbor.worker.supervisor import crash_recovery, parent
from taskharbor.worker.supervisor.child_process import ChildProcess
from taskharbor.worker.supervisor.crash_recovery import RecoveredJobs
from taskharbor.worker.supervisor.lease_keeper import SupervisorLeaseKeeper
from taskharbor.worker.supervisor.liveness import LivenessMonitor
from taskharbor.worker.supervisor.parent import Supervisor
from taskharbor.worker.supervisor.shared_memory import PublishedLease, Reader
from taskharbor.worker.supervisor.slot import ExitKind, WorkerSlot
from taskharbor.worker.supervisor.store_duties import StoreDuties
from taskharbor.worker.worker import Worker
from tests.simulation.planted import Planted

PLANTED_IN_THE_SUPERVISOR: dict[str, Planted] = {}


def plant(planted: Planted) -> Planted:
    """Register a planted bug under its docstring."""
    assert planted.__doc__ is not None
    PLANTED_IN_THE_SUPERVISOR[planted.__doc__] = planted
    return planted


# -- settling the jobs of dead children ----------------------------------------------------------


@plant
def claimed_is_lost() -> Any:
    """what a dead child had only claimed is lost"""
    orphaned_leases = Reader.orphaned_leases

    def guessing(self: Any) -> list[PublishedLease]:
        return [
            replace(lease, begun={**dict.fromkeys(lease.unbegun, 1), **lease.begun}, unbegun=set())
            for lease in orphaned_leases(self)
        ]

    return mock.patch.object(Reader, "orphaned_leases", guessing)


@plant
def begun_is_handed_back() -> Any:
    """what a dead child had begun is handed back uncounted"""
    settle = crash_recovery.settle_orphaned_jobs

    async def lenient(driver: Any, left: Any, *more: Any, **settings: Any) -> RecoveredJobs:
        left = [(token, replace(held, begun={}, ended=set())) for token, held in left]
        return await settle(driver, left, *more, **settings)

    return mock.patch("taskharbor.worker.supervisor.store_duties.settle_orphaned_jobs", lenient)


@plant
def settled_while_alive() -> Any:
    """the jobs of a stuck child are settled before it is ended"""
    kill_stuck = LivenessMonitor._kill_stuck

    async def hasty(self: Any, child: ChildProcess) -> None:
        store_duties = self._children.__self__._store_duties
        await store_duties.settle(child, crash_recovery.ProcessExit(child.name, "was stuck"))
        await kill_stuck(self, child)

    return mock.patch.object(LivenessMonitor, "_kill_stuck", hasty)


@plant
def session_not_awaited() -> Any:
    """the jobs of a dead child are settled while something of its session is left"""

    async def impatient(self: Any) -> None:
        self.kill()

    return mock.patch.object(ChildProcess, "wait_until_gone", impatient)


@plant
def stale_page() -> Any:
    """the parent believes what the last heartbeat read from a dead child's shared memory"""
    leases = Reader.leases

    def remembered(self: Any) -> list[PublishedLease]:
        self.read_last = leases(self)
        return list(self.read_last)

    def orphaned_leases(self: Any) -> list[PublishedLease]:
        return list(getattr(self, "read_last", ()))

    return mock.patch.multiple(Reader, leases=remembered, orphaned_leases=orphaned_leases)


@plant
def claim_under_way_forgotten() -> Any:
    """the claim whose answer had not yet reached the child is forgotten"""
    return mock.patch.object(Reader, "orphaned_leases", Reader.leases)


@plant
def first_lease_only() -> Any:
    """of several leases of a dead child only the first is settled"""
    settle = crash_recovery.settle_orphaned_jobs

    async def partly(driver: Any, left: Any, *more: Any, **settings: Any) -> RecoveredJobs:
        return await settle(driver, left[:1], *more, **settings)

    return mock.patch("taskharbor.worker.supervisor.store_duties.settle_orphaned_jobs", partly)


@plant
def not_repeated() -> Any:
    """settling is not repeated when the store did not answer"""
    settle = crash_recovery.settle_orphaned_jobs

    async def once(*more: Any, **settings: Any) -> RecoveredJobs:
        try:
            return await settle(*more, **settings)
        except StoreError:
            return RecoveredJobs()

    return mock.patch("taskharbor.worker.supervisor.store_duties.settle_orphaned_jobs", once)


@plant
def never_settled() -> Any:
    """what a dead child leaves behind waits for its lease"""

    async def nothing(self: Any, child: Any, process_exit: Any) -> RecoveredJobs:
        return RecoveredJobs()

    return mock.patch.object(StoreDuties, "settle", nothing)


# -- leases --------------------------------------------------------------------------------------


@plant
def forgets_to_extend() -> Any:
    """the heartbeat from outside stops after its first beat"""

    async def once(self: Any) -> None:
        await self.beat()
        await asyncio.get_running_loop().create_future()

    return mock.patch.object(SupervisorLeaseKeeper, "run", once)


@plant
def relies_on_its_parent() -> Any:
    """a child whose supervisor hangs does not extend for itself"""
    due = LeaseKeeper._due

    def trusting(self: Any) -> Any:
        return [] if self._extended_outside else due(self)

    return mock.patch.object(LeaseKeeper, "_due", trusting)


# -- lives ---------------------------------------------------------------------------------------


@plant
def no_backoff() -> Any:
    """children that die at once are replaced without a pause"""
    return mock.patch.object(parent, "_backoff_seconds", return_value=0.0)


@plant
def never_restarted() -> Any:
    """a child that died is never replaced"""

    async def once(self: Any) -> None:
        async with asyncio.TaskGroup() as group:
            slot = WorkerSlot(group, self._start, self._supervise)
            while await slot.run_next_child(self._config) in (ExitKind.DONE, ExitKind.REPLACE):
                if self._stopping.is_set():
                    return
            await self._stopping.wait()

    return mock.patch.object(Supervisor, "_keep_slot_filled", once)


@plant
def suspects_not_seen_to() -> Any:
    """no worker executes suspects"""
    return mock.patch.object(Supervisor, "_start_suspect_runner", return_value=None)


@plant
def neighbours_condemned() -> Any:
    """the death of a child counts against everything that it had begun"""
    settle = crash_recovery.settle_orphaned_jobs

    async def harsh(driver: Any, left: Any, *more: Any, **settings: Any) -> RecoveredJobs:
        left = [(token, replace(held, alone=True)) for token, held in left]
        return await settle(driver, left, *more, **settings)

    return mock.patch("taskharbor.worker.supervisor.store_duties.settle_orphaned_jobs", harsh)


@plant
def never_made_to_end() -> Any:
    """a child that takes too long to stop is never ended"""

    async def patient(self: Any) -> None:
        await self._stopping.wait()
        await asyncio.get_running_loop().create_future()

    return mock.patch.object(Supervisor, "_enforce_stop_deadline", patient)


@plant
def recycled_without_grace() -> Any:
    """a child that has begun enough jobs ends without waiting for them"""

    async def abrupt(self: Any) -> None:
        self.stop()
        self.stop()

    return mock.patch.object(WorkerRun, "_retire", abrupt)


@plant
def recycled_by_shutdown() -> Any:
    """a child that has begun enough jobs waits for them no longer than the grace"""

    async def hurried(self: Any) -> None:
        self.leave()

    return mock.patch.object(WorkerRun, "_retire", hurried)


@plant
def successor_comes_late() -> Any:
    """a child that retires is replaced only when it is gone"""

    async def never(self: Any, child: ChildProcess) -> None:
        await asyncio.get_running_loop().create_future()

    return mock.patch.object(WorkerSlot, "_wait_for_retirement", never)


@plant
def crowded_seat() -> Any:
    """a child retires although its predecessor still does"""

    async def any_number(self: Any, child: ChildProcess) -> None:
        await child.retiring.wait()

    return mock.patch.multiple(
        WorkerSlot, is_shared=property(lambda self: False), _wait_for_retirement=any_number
    )


@plant
def never_allowed_to_retire() -> Any:
    """a child never learns that its predecessor is gone"""
    return mock.patch.object(ChildProcess, "allow_retirement", return_value=None)


@plant
def second_word_ends() -> Any:
    """a child that gets a signal to stop while it retires ends at once"""
    stop = WorkerRun.stop

    def impatient(self: Any) -> None:
        if self._retirement.is_due.is_set():
            self._ending_now.set()
        stop(self)

    return mock.patch.object(WorkerRun, "stop", impatient)


@plant
def orphan_ends_at_once() -> Any:
    """a child that gets a signal to stop, and then loses its supervisor, ends at once"""
    return mock.patch.object(Worker, "_leave", Worker.stop)
