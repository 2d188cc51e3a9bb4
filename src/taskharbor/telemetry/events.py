"""Events: call subscribers when something happens to a job or a worker, without ever delaying or failing it.

Subscribers run apart from the jobs: asynchronous ones as tasks of the loop that emitted the event,
others in one thread of their own, fed by a bounded queue. What they raise is logged.
"""

from __future__ import annotations

import inspect
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, get_args

from msgspec import Struct

from taskharbor.clock import from_micros
from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError
from taskharbor.records import Options, ReasonName
from taskharbor.rules.meta import read_meta
from taskharbor.sync import in_sync_call

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("taskharbor.events")

JobEventName = Literal["enqueued", "started", "succeeded", "failed", "retried", "dead", "lost", "cancelled"]
EventName = Literal[JobEventName, "stuck"]
JOB_EVENTS: tuple[JobEventName, ...] = get_args(JobEventName)
EVENT_NAMES: tuple[EventName, ...] = get_args(EventName)
WAITING_MAX = (
    10_000  # events that wait for slow subscribers; further ones are dropped, and counted in the log
)

F = TypeVar("F", bound=Callable[..., Any])


class Identified(Protocol):
    """A job in any form: new, claimed, or as the store returns it."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def meta(self) -> str | None: ...


class Event(Struct, frozen=True):
    """Something that happened to a job. All events but `started` are emitted after the store has committed.

    `stuck` is about a worker process: `job_id`, `task` and `queue` are empty, and `jobs` lists its running jobs.
    """

    name: EventName
    job_id: str
    task: str
    queue: str
    at: datetime
    attempt: int | None = None  # the attempt's number
    correlation_id: str | None = None
    meta: dict[str, str] = {}  # the job's
    worker: str | None = None
    error: str | None = None
    reason: ReasonName | None = None  # of dead and cancelled
    retry_at: datetime | None = None
    delay_seconds: float | None = None
    jobs: tuple[str, ...] = ()  # of stuck: the running jobs of the process, at most twenty

    @classmethod
    def about(cls, job: Identified, options: Options, name: EventName, at: int, **more: Any) -> Event:
        """Build an event of this job, at the store's time `at`; `more` are further fields."""
        return cls(
            name,
            job.id,
            job.task,
            job.queue,
            from_micros(at),
            correlation_id=options.correlation_id,
            meta=read_meta(job.meta),
            **more,
        )


class EventKind(Struct, frozen=True):
    """What docs/events.md says of an event."""

    name: EventName
    emitted_by: str
    when: str
    fields: tuple[str, ...] = ()  # beyond those that every event has
    sometimes: tuple[str, ...] = ()  # only where they apply


EVERY_EVENT = ("name", "job_id", "task", "queue", "at", "correlation_id", "meta")  # the fields of all of them
_ATTEMPT = ("attempt", "worker")

EVENTS = (
    EventKind(
        "enqueued",
        "the producer",
        "a new job was stored; not emitted inside your own transaction, nor for children",
    ),
    EventKind("started", "the worker", "a handler is about to be called", _ATTEMPT),
    EventKind("succeeded", "the worker", "a success has been settled", _ATTEMPT),
    EventKind(
        "failed",
        "the worker",
        "a failure has been settled; `retried`, `dead` or `cancelled` follows",
        (*_ATTEMPT, "error"),
    ),
    EventKind(
        "retried",
        "the worker",
        "the job will run again, at `retry_at`",
        (*_ATTEMPT, "error", "retry_at", "delay_seconds"),
    ),
    EventKind(
        "dead",
        "the worker, or the operator's process",
        "the job is in the dead-letter queue, or an occurrence of a schedule failed for good, for `reason`",
        ("reason",),
        (*_ATTEMPT, "error"),
    ),
    EventKind(
        "lost",
        "the worker that collected the lease; for a dead worker process, another process",
        "the job's lease expired, or its process died",
        (*_ATTEMPT, "error"),
    ),
    EventKind(
        "cancelled",
        "the worker, or the operator's process",
        "the job was cancelled or discarded, was not begun by its `expires_at`, or ended with a job that it depends on "
        "(reason `dependency`)",
        ("reason",),
        (*_ATTEMPT, "error"),
    ),
    EventKind(
        "stuck",
        "another worker process of the same supervisor, or the replacement",
        "a process showed no sign of life for `--stuck-seconds` and is replaced; `worker` names it, `jobs` lists the "
        "jobs it executed (at most twenty). No single job is concerned: `job_id`, `task` and `queue` are empty",
        ("worker", "error", "jobs"),
    ),
)


class Events:
    def __init__(self) -> None:
        self._subscribers: dict[str, list[Callable[[Event], Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = _SubscriberThread()

    def subscribe(self, name: EventName, subscriber: F) -> F:
        self.check_name(name)
        if not callable(subscriber):
            raise ConfigurationError(f"a subscriber is a function of one event, not {shorten(subscriber)}")
        self._subscribers.setdefault(name, []).append(subscriber)
        return subscriber

    def unsubscribe(self, name: EventName, subscriber: Callable[[Event], Any]) -> None:
        """Unsubscribe; a no-op if it is not subscribed."""
        left = [each for each in self._subscribers.get(name, ()) if each != subscriber]
        if left:
            self._subscribers[name] = left
        else:
            self._subscribers.pop(name, None)

    def check_name(self, name: EventName) -> None:
        if name not in EVENT_NAMES:
            raise ConfigurationError(
                f"no event is called {shorten(name)}; the events are {', '.join(EVENT_NAMES)}"
            )

    def wanted(self, name: EventName) -> bool:
        return name in self._subscribers

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers.get(event.name, ()):
            loop = _running_loop() if inspect.iscoroutinefunction(subscriber) else None
            if loop is None:
                self._thread.put(subscriber, event)
            elif len(self._tasks) < WAITING_MAX:
                task = loop.create_task(_call_async(subscriber, event))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._thread.count_dropped()

    async def drain(self, seconds: float) -> None:
        """Wait a while for subscribers on this loop to finish."""
        import asyncio

        loop = asyncio.get_running_loop()
        myself = asyncio.current_task()
        mine = [task for task in list(self._tasks) if task.get_loop() is loop and task is not myself]
        if mine:
            await asyncio.wait(mine, timeout=seconds)

    async def aclose(self, seconds: float = 5.0) -> None:
        """Wait a while for all subscribers to finish, without blocking the loop."""
        if in_sync_call():
            self.close(seconds)
            return
        await self.drain(seconds)
        if self._thread.is_running:
            import asyncio

            await asyncio.to_thread(self.close, seconds)

    def close(self, seconds: float = 5.0) -> None:
        """Wait a while for the subscribers' thread to finish."""
        self._thread.close(seconds)


class _SubscriberThread:
    """Start the thread with the first event; a forked process starts its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._queue: queue.Queue[tuple[Callable[[Event], Any], Event] | None] = queue.Queue(WAITING_MAX)
        self._dropped = 0

    def put(self, subscriber: Callable[[Event], Any], event: Event) -> None:
        if not self.is_running:
            self._start()
        try:
            self._queue.put_nowait((subscriber, event))
        except queue.Full:
            self.count_dropped()

    def count_dropped(self) -> None:
        """Count an event that its subscriber does not get; log the 1st, the 2nd, the 4th, the 8th of them and so on."""
        self._dropped += 1
        if self._dropped & (self._dropped - 1) == 0:
            _log(
                logging.WARNING,
                "events are dropped: subscribers are too far behind",
                {"dropped": self._dropped},
            )

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._pid == os.getpid()

    def _start(self) -> None:
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_serve_subscribers, args=(self._queue,), name="taskharbor-events", daemon=True
                )
                self._thread.start()

    def close(self, seconds: float) -> None:
        if self._thread is None or not self.is_running:
            return
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            return
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)
        self._thread = None


def _serve_subscribers(waiting: queue.Queue[tuple[Callable[[Event], Any], Event] | None]) -> None:
    while (entry := waiting.get()) is not None:
        subscriber, event = entry
        try:
            answer = subscriber(event)
            if inspect.isawaitable(answer):
                import asyncio

                asyncio.run(_awaited(answer))
        except BaseException as error:  # noqa: BLE001 - a subscriber's own: a SystemExit would end this thread
            _log_failure(event, error)


async def _awaited(answer: Any) -> None:
    await answer


async def _call_async(subscriber: Callable[[Event], Any], event: Event) -> None:
    try:
        await subscriber(event)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a subscriber's own: a SystemExit would end the loop
        _log_failure(event, error)


def _log_failure(event: Event, error: BaseException) -> None:
    fields = {"event": event.name, "job": event.job_id}
    _log(logging.ERROR, "a subscriber failed at {event} of Job {job}", fields, error)


def _log(level: int, sentence: str, fields: dict[str, Any], error: BaseException | None = None) -> None:
    from taskharbor.telemetry.logs import (
        log_line,
    )  # a producer whose subscribers do not fail starts without it

    log_line(logger, level, sentence, fields, error=error, stacklevel=3)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    loaded = sys.modules.get("asyncio")  # if it is not loaded, no loop can be running
    loop: asyncio.AbstractEventLoop | None = None if loaded is None else loaded._get_running_loop()
    return loop
