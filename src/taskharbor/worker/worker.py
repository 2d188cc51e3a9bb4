"""`Worker`: the object that a user configures, starts and stops. Each of its runs is a `WorkerRun`."""

from __future__ import annotations

import asyncio
import inspect
import os
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, UnsetType

from taskharbor.client.harbor import Harbor
from taskharbor.client.options import checked_retry_of_code, checked_timeout
from taskharbor.clock import check_seconds, seconds_to_micros
from taskharbor.codec import checked_name, shorten
from taskharbor.drivers.base import DEFAULT_MAX_LOSSES, JobSource
from taskharbor.drivers.capabilities import Rollups
from taskharbor.errors import ConfigurationError
from taskharbor.function_refs import forbid_during_import
from taskharbor.rules.policy import UNRUNNABLE_GRACE_SECONDS
from taskharbor.rules.retry import RetryPolicy
from taskharbor.telemetry.metrics.catalogue import PREFIX
from taskharbor.telemetry.metrics.cells import Cells
from taskharbor.telemetry.metrics.meter import Meter
from taskharbor.telemetry.metrics.totals import Totals
from taskharbor.worker.handlers.isolation.pool import refuse_unreachable_hooks
from taskharbor.worker.handlers.threads import HandlerThreads, ThreadsMaker
from taskharbor.worker.run import Phase, WorkerRun
from taskharbor.worker.signals import run_with_signals
from taskharbor.worker.supervisor_link import SupervisorLink
from taskharbor.worker.upkeep.retirement import ReplacementPolicy

if TYPE_CHECKING:
    from taskharbor.drivers.contract.reading import StreamPresence
    from taskharbor.telemetry.metrics.exposition import Renderer

CONCURRENCY_MAX = 10_000
LEASE_SECONDS_MIN = 0.1
MAX_LOSSES_MAX = 100  # the worker reads this many rows of a job's history
LIMIT_MAX = 1_000_000_000
EVENTS_SECONDS = 2.0
# `docker stop` kills after 10 s. A worker ends two seconds after its grace period at the latest.
GRACE_SECONDS = 7.0


class Worker:
    """Executes the jobs of the given queues, or of all queues.

    `retry` is the policy for jobs that have none of their own, and caps every job's limit with its
    `max_attempts` (0 lifts the cap); None means that the first failure is the last. Left out, it is the harbor's
    `worker_retry`.

    `unresponsive_seconds` ends the worker, with `UnresponsiveHandler`, when a handler in a thread has not ended
    this long after it timed out or was cancelled: only the end of the process ends such a thread. `handler_max_jobs`
    replaces a process of `isolation="process"` handlers after this many jobs.

    `max_jobs` and `max_memory_mib` let the worker retire: when it has begun this many jobs, or its process has more
    memory, it claims no more, hands back what it has not begun, and `run` returns when its handlers have ended by
    themselves, however long that takes.

    `log_tracebacks=False` keeps the tracebacks of failed attempts out of the log; the history still has them.

    With `metrics=True` the worker counts what docs/metrics.md lists; `collector()` gives it to Prometheus.
    `rollups=False` keeps what it counts out of the store's roll-ups, which docs/stats.md describes.
    """

    _supervisor_link: SupervisorLink | None = None  # a supervisor in another process
    _replacement_policy: ReplacementPolicy | None = None  # asks for a replacement when the worker retires
    _on_stop: Callable[[], None] | None = None  # called when a shutdown begins
    _expected_pace = (
        0.0  # jobs begun per second; the fetcher claims ahead by it until it has measured the pace
    )
    _meter: Meter | None = None  # counts what happens to jobs
    _source: JobSource | None = None  # of jobs that do not come from the store; see `taskharbor.streams`
    _stream: Callable[[], StreamPresence | None] | None = None  # what it reads, if it reads a topic
    _calls_hooks = True  # of the harbor, around its run
    _takes_interrupts = False  # Ctrl-C calls `stop` and raises no KeyboardInterrupt
    _make_threads: ThreadsMaker = HandlerThreads  # for synchronous handlers

    def __init__(
        self,
        harbor: Harbor,
        queues: Iterable[str] | None = None,
        concurrency: int = 100,
        lease_seconds: float = 30.0,
        retry: RetryPolicy | None | UnsetType = UNSET,
        grace_seconds: float = GRACE_SECONDS,
        *,
        max_losses: int = DEFAULT_MAX_LOSSES,
        unrunnable_grace_seconds: float = UNRUNNABLE_GRACE_SECONDS,
        poll_seconds: float = 5.0,
        unresponsive_seconds: float | None = None,
        handler_max_jobs: int | None = None,
        max_jobs: int | None = None,
        max_memory_mib: int | None = None,
        log_tracebacks: bool = True,
        metrics: bool = False,
        rollups: bool = True,
        name: str | None = None,
    ) -> None:
        if not isinstance(harbor, Harbor):
            raise ConfigurationError(
                f"Worker takes a Harbor, not {shorten(harbor)}; for example Worker(Harbor())"
            )
        self.harbor = harbor
        self.queues = _checked_queues(queues)
        self.concurrency = _checked_count("concurrency", concurrency, CONCURRENCY_MAX)
        self.lease = seconds_to_micros(_checked_lease(lease_seconds))
        self.grace_seconds = check_seconds(grace_seconds, "grace_seconds")
        self.retry = harbor.worker_retry if retry is UNSET else checked_retry_of_code(retry)
        self.max_losses = _checked_count("max_losses", max_losses, MAX_LOSSES_MAX)
        self.unrunnable_grace_seconds = check_seconds(unrunnable_grace_seconds, "unrunnable_grace_seconds")
        self.poll_seconds = checked_timeout(poll_seconds, "poll_seconds")
        self.unresponsive_seconds = (
            None
            if unresponsive_seconds is None
            else checked_timeout(unresponsive_seconds, "unresponsive_seconds")
        )
        self.handler_max_jobs = _checked_limit("handler_max_jobs", handler_max_jobs)
        self.max_jobs = _checked_limit("max_jobs", max_jobs)
        self.max_memory_mib = _checked_limit("max_memory_mib", max_memory_mib)
        if max_memory_mib is not None and sys.platform == "win32":
            raise ConfigurationError(
                "max_memory_mib needs a POSIX system, which reports how much memory a process uses; "
                "leave it out on Windows"
            )
        self.log_tracebacks = bool(log_tracebacks)
        self.name = (
            checked_name("worker", name)
            if name is not None
            else f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        )
        self.metrics = bool(metrics)
        self.rollups = bool(rollups) and Rollups.offered_by(harbor.driver) is not None
        if self.metrics or self.rollups:
            self._count_in(Cells())
        self._run: WorkerRun | None = None
        self._background: asyncio.Task[None] | None = None

    # -- metrics --

    def collector(self, *, prefix: str = PREFIX) -> Renderer:
        """Return what this worker has counted, for prometheus_client: `REGISTRY.register(worker.collector())`.

        It needs `metrics=True` and the extra `[metrics]`. `prefix` begins the names; with `""` they are bare.
        """
        from taskharbor.telemetry.metrics.exposition import Renderer

        return Renderer(self._totals().snapshot, prefix=prefix)

    def _count_in(self, cells: Cells) -> None:
        """Count in this memory, from the next run on."""
        harbor = self.harbor
        self._meter = Meter(cells, lambda task: harbor._known(task) is not None)

    def _totals(self) -> Totals:
        if self._meter is None or not self.metrics:
            raise ConfigurationError("this worker counts nothing; make it with Worker(harbor, metrics=True)")
        totals = Totals()
        totals.add(self._meter.cells)
        return totals

    # -- running --

    async def run(self) -> None:
        """Execute jobs until `stop()`."""
        await self._work(until_drained=False)

    async def drain(self) -> None:
        """Execute jobs until nothing is runnable now, then return: for tests, scripts and cron."""
        await self._work(until_drained=True)

    def run_sync(self) -> None:
        """`run()` with a loop of its own; SIGTERM and SIGINT shut down gracefully, a second signal ends it at once."""
        run_with_signals(self.run, self)

    def drain_sync(self) -> None:
        """`drain()` with a loop of its own, signals as in `run_sync`."""
        run_with_signals(self.drain, self)

    def stop(self) -> None:
        """Shut down gracefully; called again, end at once: unsettled jobs run again when their leases expire.

        Any thread may call it."""
        run = self._run
        if run is None:
            return
        try:
            run.loop.call_soon_threadsafe(run.stop)
        except RuntimeError:
            if not run.loop.is_closed():
                raise
            # The loop is closed, so nothing of the worker runs any more.

    @property
    def _phase(self) -> Phase:
        return "starting" if self._run is None else self._run.phase

    def _leave(self) -> None:
        """Shut down gracefully without a `stop` from outside; the next `stop` counts as the first."""
        if self._run is not None:
            self._run.leave()

    def _report_loop_stopped(self) -> None:
        """Log that code in the worker's event loop has stopped the loop."""
        if self._run is not None:
            self._run.report_loop_stopped()

    def _predecessor_is_gone(self) -> None:
        """Let the worker retire if it has reached a limit already."""
        if self._run is not None:
            self._run.predecessor_is_gone()

    def _report_stream(self, tell: object) -> None:
        """A worker of the store reads no stream."""

    def _learn_losses(self, messages: object) -> None:
        """A worker of the store has no messages that another process could have begun."""

    async def __aenter__(self) -> Worker:
        started = asyncio.Event()
        self._background = asyncio.get_running_loop().create_task(self._work(started=started))
        waiting = asyncio.ensure_future(started.wait())
        try:
            await asyncio.wait([waiting, self._background], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the block is not entered, so `__aexit__` will not end the worker
            self._background.cancel()
            await asyncio.wait([self._background])
            raise
        finally:
            waiting.cancel()
        if self._background.done():
            self._background.result()
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        self.stop()
        if self._background is not None:
            await self._background
        return False

    async def _apply_lease_update(
        self,
        cancel_requested: Iterable[str],
        paused: Iterable[str],
        holds: Iterable[str],
        refused: Iterable[str],
    ) -> None:
        """Apply what the store answered the supervisor when it extended this worker's leases."""
        if self._run is not None:
            await self._run.apply_lease_update(cancel_requested, paused, holds, refused)

    async def _work(self, *, until_drained: bool = False, started: asyncio.Event | None = None) -> None:
        forbid_during_import("a worker was started")
        self.harbor._import_included()
        refuse_unreachable_hooks(self.harbor)
        if self._run is not None:
            raise ConfigurationError("this worker is running already; make another Worker for a second run")
        self._run = run = WorkerRun(self)  # first of all, so that `stop` works from here on
        try:
            if await run.with_store(self._open_store):
                await self._work_between_hooks(run, until_drained, started)
        finally:
            self._run = None

    async def _open_store(self) -> None:
        await self.harbor.driver.open_for_work()
        await self.harbor.schedules._reconcile()

    async def _work_between_hooks(
        self, run: WorkerRun, until_drained: bool, started: asyncio.Event | None
    ) -> None:
        try:
            for hook in self.harbor.start_hooks if self._calls_hooks else ():
                await _call_hook(hook)
            if started is not None:
                started.set()
            await run.work(until_drained)
            run.raise_if_given_up()
        finally:
            self._run = None
            async with AsyncExitStack() as closing:  # in reverse order; all run, even if one fails
                closing.push_async_callback(self.harbor.events.drain, EVENTS_SECONDS)
                for hook in self.harbor.stop_hooks if self._calls_hooks else ():
                    closing.push_async_callback(_call_hook, hook)


async def _call_hook(hook: Callable[[], Any]) -> None:
    answer = hook()
    if inspect.isawaitable(answer):
        await answer


def _checked_queues(queues: Iterable[str] | None) -> tuple[str, ...] | None:
    if queues is None:
        return None
    if isinstance(queues, str) or not isinstance(queues, Iterable):
        raise ConfigurationError(f'queues must be a list of names such as ["mail"], not {shorten(queues)}')
    names = tuple(checked_name("queue", name) for name in queues)
    if not names:
        raise ConfigurationError("queues is empty; name at least one, or leave it out to serve every queue")
    return names


def _checked_lease(lease_seconds: float) -> float:
    if check_seconds(lease_seconds, "lease_seconds") < LEASE_SECONDS_MIN:
        raise ConfigurationError(
            f"lease_seconds must be {LEASE_SECONDS_MIN:g} or more, not {shorten(lease_seconds)}: "
            "a heartbeat has to arrive within it"
        )
    return lease_seconds


def _checked_count(name: str, value: object, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise ConfigurationError(f"{name} must be a whole number from 1 to {most}, not {shorten(value)}")
    return value


def _checked_limit(name: str, value: object) -> int | None:
    return None if value is None else _checked_count(name, value, LIMIT_MAX)
