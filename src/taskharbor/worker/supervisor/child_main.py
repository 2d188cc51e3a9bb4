"""The child process: a worker of the application that publishes its leases to the supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from taskharbor import presets
from taskharbor.errors import ConfigurationError, StoreError, UnresponsiveHandler
from taskharbor.own_tasks import own_task
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.supervisor.channel import (
    NO_RETRIES,
    Channel,
    Drained,
    EventMessage,
    Hello,
    LeaseUpdate,
    MayRetire,
    MessagesLost,
    Ready,
    Retiring,
    StreamReport,
    SuspectsWaiting,
    Vitals,
    Waiting,
    WorkerConfig,
)
from taskharbor.worker.supervisor.shared_memory import Publisher
from taskharbor.worker.upkeep.colleagues import known_tasks
from taskharbor.worker.upkeep.vitals import LoopLag

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.drivers.contract.reading import StreamPresence
    from taskharbor.rules.retry import RetryPolicy
    from taskharbor.telemetry.metrics.cells import Cells
    from taskharbor.worker.pipeline.execution import Execution
    from taskharbor.worker.pipeline.leases import HeldLease
    from taskharbor.worker.supervisor.channel import LostMessage
    from taskharbor.worker.supervisor_link import SupervisorLink
    from taskharbor.worker.upkeep.retirement import ReplacementPolicy
    from taskharbor.worker.worker import Worker

logger = logging.getLogger("taskharbor.worker")

EXIT_REPLACE = 75  # the exit status that asks for a replacement
SUSPECTS_EVERY_SECONDS = 0.5
VITALS_LOOKS = 10  # at the event loop, a second each, between two reports


class SupervisedWorker(Protocol):
    """What a child needs of its worker: of the store's jobs, or of a stream's messages."""

    harbor: Harbor
    _supervisor_link: SupervisorLink | None
    _replacement_policy: ReplacementPolicy | None

    @property
    def name(self) -> str: ...
    @property
    def _phase(self) -> str: ...
    def _count_in(self, cells: Cells) -> None: ...
    def _leave(self) -> None: ...
    def _predecessor_is_gone(self) -> None: ...
    def _learn_losses(self, messages: Sequence[LostMessage]) -> None: ...
    def _report_stream(self, tell: Callable[[StreamPresence], object]) -> None: ...
    async def _apply_lease_update(
        self,
        cancel_requested: Iterable[str],
        paused: Iterable[str],
        holds: Iterable[str],
        refused: Iterable[str],
    ) -> None: ...
    async def _work(self, *, until_drained: bool = False, started: asyncio.Event | None = None) -> None: ...


class ProcessLink:
    """The `SupervisorLink` to a parent process: shared memory and a channel."""

    extends_leases = True

    def __init__(self, publisher: Publisher, worker: SupervisedWorker, config: WorkerConfig) -> None:
        self.prefix = f"{worker.name}/{os.urandom(8).hex()}"
        self.suspects_only = config.suspects_only
        self.cells = publisher.words
        self.channel: Channel | None = None
        self._worker = worker
        self._publisher = publisher
        self._suspects_reported_at = 0.0
        self._claiming = 0  # the serial of the claim under way

    @property
    def room(self) -> int:
        return self._publisher.room

    def claiming(self, token: str, *, alone: bool) -> None:
        self._claiming = _serial(token)
        self._publisher.claiming(self._claiming, alone=alone)

    def claimed(self, lease: HeldLease | None, executions: Sequence[Execution]) -> None:
        self._publisher.claimed(self._claiming, lease, executions)

    def lost(self, lease: HeldLease) -> None:
        self._publisher.withdraw(lease)

    def over(self, lease: HeldLease) -> None:
        self._publisher.free(lease)

    def extended_to(self, lease: HeldLease) -> int:
        return self._publisher.extended_to(_serial(lease.token), lease)

    def suspects_waiting(self) -> None:
        now = self._worker.harbor.driver.clock.monotonic()
        if self.channel is not None and now - self._suspects_reported_at >= SUSPECTS_EVERY_SECONDS:
            self._suspects_reported_at = now
            self.channel.send(SuspectsWaiting())


def _serial(token: str) -> int:
    return int(token.rpartition("-")[2])


class Child:
    """A worker under a supervisor, and its `ReplacementPolicy`.

    `address` is the store's URL as the supervisor can open it, None if it cannot.
    """

    def __init__(
        self, worker: SupervisedWorker, publisher: Publisher, config: WorkerConfig, address: str | None
    ) -> None:
        self._worker = worker
        self._publisher = publisher
        self._config = config
        self._address = address
        self._link = ProcessLink(publisher, worker, config)
        if address is not None:
            worker._supervisor_link = self._link
        worker._replacement_policy = self
        if publisher.metrics is not None:
            worker._count_in(publisher.metrics)
        self.may_retire = config.may_retire
        self.retiring: str | None = None  # the reason
        self.is_ready = False
        self.status = 0  # the exit status of the process

    async def work(self, connect: Callable[[], Awaitable[Channel]]) -> None:
        """Run the worker until it stops, drains, retires or has to be replaced."""
        try:
            await self._work(await connect())
        except UnresponsiveHandler as error:
            log_line(logger, logging.ERROR, "worker exits and will be replaced: {why}", {"why": str(error)})
            self.status = EXIT_REPLACE
        if self.retiring is not None:
            self.status = EXIT_REPLACE

    async def _work(self, channel: Channel) -> None:
        self._link.channel = channel
        self._worker._report_stream(lambda stream: channel.send(StreamReport(stream)))
        channel.send(Hello(self._worker.name, self._link.prefix, self._address))
        started = asyncio.Event()
        companions = [
            own_task(part)
            for part in (
                self._listen(channel),
                self._show_alive(),
                self._report_ready(started, channel),
                self._report_vitals(started, channel),
            )
        ]
        try:
            await self._worker._work(until_drained=self._config.drain, started=started)
        finally:
            for part in companions:
                part.end()
            await channel.flush()
            channel.close()

    async def _report_ready(self, started: asyncio.Event, channel: Channel) -> None:
        await started.wait()
        self.is_ready = True
        tasks = known_tasks(self._worker.harbor)
        channel.send(Ready(None if tasks is None else list(tasks), self._worker.harbor.version))

    async def _report_vitals(self, started: asyncio.Event, channel: Channel) -> None:
        """Tell the supervisor how this process does, which records that for its children."""
        await started.wait()
        lag = LoopLag()
        while True:
            channel.send(Vitals(lag.vitals()))
            for _ in range(VITALS_LOOKS):
                await lag.look()

    # -- its replacement --

    def retires(self, why: str, *, idle: bool) -> None:
        self.retiring = why
        self._send(Retiring(why, idle))

    def leaves(self) -> None:
        self._send(Drained())

    def _send(self, message: Retiring | Drained) -> None:
        if self._link.channel is not None:
            self._link.channel.send(message)

    # -- companions of the worker --

    async def _listen(self, channel: Channel) -> None:
        async for message in channel.messages():
            match message:
                case LeaseUpdate(cancel_requested, paused, holds, refused):
                    try:
                        await self._worker._apply_lease_update(cancel_requested, paused, holds, refused)
                    except StoreError as error:  # the next heartbeat sends it again
                        log_line(
                            logger, logging.WARNING, "could not check a lease: {error}", {"error": str(error)}
                        )
                case EventMessage(event):
                    self._worker.harbor.events.emit(event)
                case MayRetire():
                    self.may_retire = True
                    self._worker._predecessor_is_gone()
                case MessagesLost(messages):
                    self._worker._learn_losses(messages)
                case _:
                    raise AssertionError(f"a supervisor never sends {type(message).__name__}")
        log_line(
            logger, logging.ERROR, "the supervisor is gone: shutting down", {"worker": self._worker.name}
        )
        self._worker._leave()  # with the grace period, even if a stop request came before

    async def _show_alive(self) -> None:
        """Show a sign of life while the loop runs; a handler that blocks the loop stops the signs."""
        has_reported = False
        while True:
            self._publisher.show_alive()
            if self._worker._phase == "waiting for the store" and not has_reported and not self.is_ready:
                has_reported = self._link.channel is not None and self._link.channel.send(Waiting())
            await asyncio.sleep(self._config.liveness_seconds)


def worker_for(harbor: Harbor, config: WorkerConfig) -> Worker:
    """Build the worker that the config describes, under a supervisor or without one."""
    from taskharbor.worker.worker import Worker

    return Worker(
        harbor,
        queues=config.queues,
        concurrency=1 if config.suspects_only else config.concurrency,
        lease_seconds=config.lease_seconds,
        retry=retry_of(harbor, config.retry, config.max_attempts),
        grace_seconds=config.grace_seconds,
        unresponsive_seconds=config.unresponsive_seconds,
        handler_max_jobs=config.handler_max_jobs,
        max_jobs=config.max_jobs,
        max_memory_mib=config.max_memory_mib,
        log_tracebacks=config.log_tracebacks,
        metrics=config.metrics,
        rollups=config.rollups,
    )


def retry_of(harbor: Harbor, retry: str | None, max_attempts: int | None) -> RetryPolicy | None:
    """Return the named retry policy, or else the application's, with the given cap."""
    policy = harbor.worker_retry
    if retry is not None:
        policy = None if retry == NO_RETRIES else presets.named(retry)
    if max_attempts is None:
        return policy
    if policy is None:
        raise ConfigurationError(
            "max_attempts caps the worker's policy, but there is none (--retry none, or Harbor(worker_retry=None)); "
            "name a policy, such as --retry default, or leave --max-attempts out"
        )
    return replace(policy, max_attempts=max_attempts)


def address_of(harbor: Harbor) -> str | None:
    """Return a URL by which the supervisor can open the store as well; None if there is none."""
    from taskharbor.drivers.memory import MemoryDriver

    if isinstance(harbor.driver, MemoryDriver):
        raise ConfigurationError(
            "a store in memory belongs to one process, and with --processes each would have one of its own; "
            "use a store on disk, such as sqlite:///harbor.db, or leave --processes out"
        )
    if not harbor.has_url:
        return None
    scheme, _, rest = harbor.url.partition("://")
    path = getattr(harbor.driver, "path", None)
    if scheme.lower() == "sqlite" and isinstance(path, str):
        _, mark, query = rest.partition("?")  # the driver's path is absolute: folders may differ
        return f"sqlite:///{quote(path, errors='surrogateescape')}{mark}{query}"
    return harbor.url
