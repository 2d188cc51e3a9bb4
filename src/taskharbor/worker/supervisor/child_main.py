"""The child: a worker of the application, published to its supervisor."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
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
    Ready,
    Retiring,
    SuspectsWaiting,
    Waiting,
    WorkerConfig,
)
from taskharbor.worker.supervisor.shared_memory import Publisher

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.rules.retry import RetryPolicy
    from taskharbor.worker.pipeline.execution import Execution
    from taskharbor.worker.pipeline.leases import HeldLease
    from taskharbor.worker.worker import Worker

logger = logging.getLogger("taskharbor.worker")

EXIT_REPLACE = 75  # ended by itself, to be replaced
SUSPECTS_EVERY_SECONDS = 0.5


class Published:
    """`SupervisorLink` by a page and a channel."""

    def __init__(self, page: Publisher, worker: Worker, orders: WorkerConfig) -> None:
        self.prefix = f"{worker.name}/{os.urandom(8).hex()}"
        self.suspects_only = orders.suspects_only
        self.cells = page.words
        self.channel: Channel | None = None
        self._worker = worker
        self._page = page
        self._told_of_suspects = 0.0
        self._claiming = 0

    @property
    def room(self) -> int:
        return self._page.room

    def claiming(self, token: str, *, alone: bool) -> None:
        self._claiming = _serial(token)
        self._page.claiming(self._claiming, alone=alone)

    def claimed(self, lease: HeldLease | None, executions: Sequence[Execution]) -> None:
        self._page.claimed(self._claiming, lease, executions)

    def lost(self, lease: HeldLease) -> None:
        self._page.withdraw(lease)

    def over(self, lease: HeldLease) -> None:
        self._page.free(lease)

    def extended_to(self, lease: HeldLease) -> int:
        return self._page.extended_to(_serial(lease.token), lease)

    def suspects_waiting(self) -> None:
        now = self._worker.harbor.driver.clock.monotonic()
        if self.channel is not None and now - self._told_of_suspects >= SUSPECTS_EVERY_SECONDS:
            self._told_of_suspects = now
            self.channel.send(SuspectsWaiting())


def _serial(token: str) -> int:
    return int(token.rpartition("-")[2])


class Child:
    """A worker with its page, and its `ReplacementPolicy`.

    `address` is the store's as the supervisor can reach it, None if it cannot.
    """

    def __init__(self, worker: Worker, page: Publisher, orders: WorkerConfig, address: str | None) -> None:
        self._worker = worker
        self._page = page
        self._orders = orders
        self._address = address
        self._published = Published(page, worker, orders)
        if address is not None:
            worker._oversight = self._published
        worker._succession = self
        self.may_retire = orders.may_retire
        self.retiring: str | None = None  # why
        self.is_ready = False
        self.status = 0  # to exit with

    async def work(self, connect: Callable[[], Awaitable[Channel]]) -> None:
        """Until there is a reason not to."""
        try:
            await self._work(await connect())
        except UnresponsiveHandler as error:
            log_line(logger, logging.ERROR, "worker ends, to be replaced: {why}", {"why": str(error)})
            self.status = EXIT_REPLACE
        if self.retiring is not None:
            self.status = EXIT_REPLACE

    async def _work(self, channel: Channel) -> None:
        self._published.channel = channel
        channel.send(Hello(self._worker.name, self._published.prefix, self._address))
        started = asyncio.Event()
        beside = [
            own_task(part)
            for part in (self._listen(channel), self._show_life(), self._say_when_ready(started, channel))
        ]
        try:
            await self._worker._work(until_drained=self._orders.drain, started=started)
        finally:
            for part in beside:
                part.end()
            await channel.flush()
            channel.close()

    async def _say_when_ready(self, started: asyncio.Event, channel: Channel) -> None:
        await started.wait()
        self.is_ready = True
        channel.send(Ready())

    # -- its succession --

    def retires(self, why: str, *, idle: bool) -> None:
        self.retiring = why
        self._say(Retiring(why, idle))

    def leaves(self) -> None:
        self._say(Drained())

    def _say(self, message: Retiring | Drained) -> None:
        if self._published.channel is not None:
            self._published.channel.send(message)

    # -- beside the worker --

    async def _listen(self, channel: Channel) -> None:
        async for message in channel.messages():
            match message:
                case LeaseUpdate(cancel_requested, paused, refused):
                    try:
                        await self._worker._heard(cancel_requested, paused, refused)
                    except StoreError as error:  # the next heartbeat says it again
                        log_line(
                            logger,
                            logging.WARNING,
                            "a lease cannot be looked at: {error}",
                            {"error": str(error)},
                        )
                case EventMessage(event):
                    self._worker.harbor.events.emit(event)
                case MayRetire():
                    self.may_retire = True
                    self._worker._predecessor_is_gone()
                case _:
                    raise AssertionError(f"a supervisor does not say {type(message).__name__}")
        log_line(
            logger, logging.ERROR, "the supervisor is gone: shutting down", {"worker": self._worker.name}
        )
        self._worker._leave()  # by the rules, also if it was told to stop a moment ago

    async def _show_life(self) -> None:
        """While the loop goes round. What a handler does to it, the supervisor sees."""
        told = False
        while True:
            self._page.show_life()
            if self._worker._phase == "waiting for the store" and not told and not self.is_ready:
                told = self._published.channel is not None and self._published.channel.send(Waiting())
            await asyncio.sleep(self._orders.life_seconds)


def worker_for(harbor: Harbor, orders: WorkerConfig) -> Worker:
    """The worker that the orders describe, in this process or under a supervisor."""
    from taskharbor.worker.worker import Worker

    return Worker(
        harbor,
        queues=orders.queues,
        concurrency=1 if orders.suspects_only else orders.concurrency,
        lease_seconds=orders.lease_seconds,
        retry=retry_of(harbor, orders),
        grace_seconds=orders.grace_seconds,
        unresponsive_seconds=orders.unresponsive_seconds,
        handler_max_jobs=orders.handler_max_jobs,
        max_jobs=orders.max_jobs,
        max_memory_mib=orders.max_memory_mib,
        log_tracebacks=orders.log_tracebacks,
    )


def retry_of(harbor: Harbor, orders: WorkerConfig) -> RetryPolicy | None:
    """The worker's policy: the one that was named, else the application's; with the cap that was given."""
    policy = harbor.worker_retry
    if orders.retry is not None:
        policy = None if orders.retry == NO_RETRIES else presets.named(orders.retry)
    if orders.max_attempts is None:
        return policy
    if policy is None:
        raise ConfigurationError(
            "max_attempts caps the worker's policy, but there is none (--retry none, or Harbor(worker_retry=None)); "
            "name a policy, such as --retry default, or leave --max-attempts out"
        )
    return replace(policy, max_attempts=orders.max_attempts)


def address_of(harbor: Harbor) -> str | None:
    """The URL by which the supervisor can reach the store as well; None if there is none."""
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
    if scheme.lower() == "sqlite" and isinstance(
        path, str
    ):  # as seen from here, wherever the supervisor stands
        _, mark, query = rest.partition("?")
        return f"sqlite:///{quote(path, errors='surrogateescape')}{mark}{query}"
    return harbor.url
