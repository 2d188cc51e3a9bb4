"""A stream worker as a child of a supervisor: what it publishes, and how it is replaced.

The supervisor learns from shared memory which messages a child had begun. It cannot read messages. So when a child
dies, it tells the process that will read them again, which hands them over to the store with one loss recorded.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from taskharbor.drivers.contract.reading import StreamPresence
from taskharbor.failure_tasks import dead_letter_queue
from taskharbor.streams import dead_letters
from taskharbor.streams.worker import StreamWorker
from taskharbor.telemetry.metrics.cells import Cells
from taskharbor.worker.supervisor.channel import LostMessage, WorkerConfig
from taskharbor.worker.supervisor.child_main import retry_of, worker_for
from taskharbor.worker.supervisor.shared_memory import MESSAGES, Publisher
from taskharbor.worker.supervisor_link import SupervisorLink
from taskharbor.worker.upkeep.retirement import ReplacementPolicy
from taskharbor.worker.worker import Worker

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.worker.pipeline.execution import Execution
    from taskharbor.worker.pipeline.leases import HeldLease

# A static member that is gone keeps its partitions for this long. Its successor takes them over within a second or two.
SESSION_MILLISECONDS = 10_000


def stream_worker_for(harbor: Harbor, config: WorkerConfig) -> StreamWorker:
    """Build the stream worker that the config describes, under a supervisor or without one."""
    assert config.stream is not None, "only called for streams"
    options = dict(config.stream)
    settings = dict(options.pop("settings", {}))
    # (With retries="topics" a worker is several members of the group, which cannot have one name.)
    if config.member is not None and options.get("retries", "store") == "store":
        base = settings.pop("group.instance.id", None)
        slot = config.member.rpartition("-")[2]
        settings["group.instance.id"] = config.member if base is None else f"{base}-{slot}"
        if settings.get("group.protocol") != "consumer":  # there the brokers decide
            settings.setdefault("session.timeout.ms", SESSION_MILLISECONDS)
    stream = StreamWorker(
        harbor,
        concurrency=config.concurrency,
        retry=retry_of(harbor, config.retry, config.max_attempts),
        grace_seconds=config.grace_seconds,
        metrics=config.metrics,
        settings=settings,
        **options,
    )
    for worker in stream._workers:
        worker.unresponsive_seconds = config.unresponsive_seconds
        worker.handler_max_jobs = config.handler_max_jobs
        worker.log_tracebacks = config.log_tracebacks
    stream._worker.max_jobs = config.max_jobs
    stream._worker.max_memory_mib = config.max_memory_mib
    stream._worker.rollups = stream._worker.rollups and config.rollups
    return stream


def supervised_stream(
    harbor: Harbor, config: WorkerConfig, publisher: Publisher
) -> SupervisedStream | Worker:
    """Build the worker of a child: a member of the group, or one that executes suspects of the store."""
    stream = stream_worker_for(harbor, config)
    if not config.suspects_only:
        return SupervisedStream(stream, publisher, config.lost_messages)
    config.queues = [stream.queue, dead_letter_queue(stream.topic)]
    if stream.dead_letter_topic is not None:
        dead_letters.declare(harbor, stream.topic, stream._sender)
    return worker_for(harbor, config)


class MessageLink:
    """Publishes which messages a worker has begun. (No store has a lease for them that could be extended.)"""

    extends_leases = False
    suspects_only = False

    def __init__(self, publisher: Publisher, worker: str) -> None:
        self.prefix = f"{worker}/{os.urandom(8).hex()}"
        self.cells = publisher.words
        self._publisher = publisher

    @property
    def room(self) -> int:
        return self._publisher.room

    def claiming(self, token: str, *, alone: bool) -> None:
        """A claim on a log that has no answer leaves nothing behind."""

    def claimed(self, lease: HeldLease | None, executions: Sequence[Execution]) -> None:
        if lease is not None:
            serial = int(lease.token.rpartition("-")[2])
            self._publisher.publish(MESSAGES | serial, lease, executions)

    def lost(self, lease: HeldLease) -> None:
        self._publisher.withdraw(lease)

    def over(self, lease: HeldLease) -> None:
        self._publisher.free(lease)

    def extended_to(self, lease: HeldLease) -> int:
        return 0

    def suspects_waiting(self) -> None:
        """Messages are no suspects before they are jobs."""


class _Retirement:
    """Replaces a child that has reached a limit. It leaves the group first: its successor has the same name there."""

    may_retire = True  # no predecessor has jobs any more

    def __init__(self, stream: StreamWorker, policy: Any) -> None:
        self._stream = stream
        self._policy = policy

    def retires(self, why: str, *, idle: bool) -> None:
        self._policy.retiring = why  # the process exits with the status that asks for a replacement
        self._stream.stop()

    def leaves(self) -> None:
        """The process exits at once; there is nothing to announce."""


class SupervisedStream:
    """A stream worker with what a supervisor's child asks of its worker."""

    def __init__(
        self, stream: StreamWorker, publisher: Publisher, lost_messages: Iterable[LostMessage]
    ) -> None:
        self._stream = stream
        self.harbor = stream.harbor
        self._learn_losses(lost_messages)
        stream._worker._supervisor_link = MessageLink(publisher.split(), stream.name)

    @property
    def name(self) -> str:
        return self._stream.name

    @property
    def _takes_interrupts(self) -> bool:
        return self._stream._takes_interrupts

    @_takes_interrupts.setter
    def _takes_interrupts(self, takes: bool) -> None:
        self._stream._takes_interrupts = takes

    @property
    def _supervisor_link(self) -> SupervisorLink | None:
        return None if self._stream._retries is None else self._stream._retries._supervisor_link

    @_supervisor_link.setter
    def _supervisor_link(self, link: SupervisorLink | None) -> None:
        if self._stream._retries is not None:
            self._stream._retries._supervisor_link = link

    @property
    def _replacement_policy(self) -> ReplacementPolicy | None:
        return self._stream._worker._replacement_policy

    @_replacement_policy.setter
    def _replacement_policy(self, policy: ReplacementPolicy | None) -> None:
        self._stream._worker._replacement_policy = (
            None if policy is None else _Retirement(self._stream, policy)
        )

    @property
    def _phase(self) -> str:
        return self._stream._worker._phase

    def _count_in(self, cells: Cells) -> None:
        for worker in self._stream._workers:
            worker._count_in(cells)
            worker._meter = self._stream._worker._meter

    def _learn_losses(self, messages: Iterable[LostMessage]) -> None:
        self._stream._losses.update((each.job, each) for each in messages)

    def _report_stream(self, tell: Callable[[StreamPresence], object]) -> None:
        self._stream._tell = tell

    def _predecessor_is_gone(self) -> None:
        self._stream._worker._predecessor_is_gone()

    def _leave(self) -> None:
        self._stream.stop()

    def stop(self) -> None:
        self._stream.stop()

    def _report_loop_stopped(self) -> None:
        self._stream._report_loop_stopped()

    async def _apply_lease_update(
        self,
        cancel_requested: Iterable[str],
        paused: Iterable[str],
        holds: Iterable[str],
        refused: Iterable[str],
    ) -> None:
        if self._stream._retries is not None:
            await self._stream._retries._apply_lease_update(cancel_requested, paused, holds, refused)

    async def _work(self, *, until_drained: bool = False, started: asyncio.Event | None = None) -> None:
        if started is not None:
            self._stream._on_ready = started.set
        await self._stream.run()
