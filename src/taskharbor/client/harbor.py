"""`Harbor`: a store, the tasks declared for it, and the operations on both."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from taskharbor import builtin_tasks, presets
from taskharbor.acting import acting_as
from taskharbor.client.code_version import checked_version, found_version
from taskharbor.client.handle import Job
from taskharbor.client.options import (
    FIRST_INSTANT,
    EnqueueOptions,
    TaskOptions,
    checked_options,
    checked_retry_of_code,
    merged,
    new_job,
    refuse_none_of_declared,
    refuse_stranger,
    with_expiries,
)
from taskharbor.client.retention import Retention
from taskharbor.client.sync_methods import sync_method
from taskharbor.client.task import Signature, Task
from taskharbor.client.transaction import Transaction, block_of, refuse_inside_transaction
from taskharbor.clock import Clock, seconds_to_micros
from taskharbor.codec import checked_name, counted, decode_result, encode_payload, shorten
from taskharbor.context import Context
from taskharbor.drivers.base import AlikeJobs, Driver, Enqueued
from taskharbor.errors import ConfigurationError
from taskharbor.function_refs import forbid_during_import
from taskharbor.records import JobRecord, NewJob
from taskharbor.rules.retry import RetryPolicy
from taskharbor.sealing import PayloadCodec, Sealing
from taskharbor.telemetry.events import EventName, Events
from taskharbor.telemetry.reports import Reports

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from taskharbor.client.audit import Audit
    from taskharbor.client.dead_letters import DeadLetters
    from taskharbor.client.declaring import Declaration
    from taskharbor.client.holds import Holding
    from taskharbor.client.queues import Queues
    from taskharbor.client.schedules import Schedules
    from taskharbor.client.stats import Stats
    from taskharbor.client.streams import Streams
    from taskharbor.client.workflows import Workflows
    from taskharbor.http.addresses import AllowList
    from taskharbor.integrations.lifespan import Inner, Lifespan
    from taskharbor.server.auth import Authorize
    from taskharbor.streams.producer import Stream
    from taskharbor.telemetry.tracing import Tracing
    from taskharbor.worker import Worker

logger = logging.getLogger("taskharbor")

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

ATTEMPTS_MAX = 2**31 - 1  # more than any job has
DEFAULT_URL = "sqlite:///taskharbor.db"
Middleware = Callable[[Context, Callable[[], Coroutine[Any, Any, Any]]], Coroutine[Any, Any, Any]]


class Harbor:
    """The entrance: `Harbor("sqlite:///harbor.db")`.

    Without a URL it takes $TASKHARBOR_URL, else `sqlite:///taskharbor.db` in the current folder. Nothing
    is opened before it is first used. Every method has an asynchronous form whose name begins with `a`.

    `http_allow` opens addresses to HTTP jobs that are closed by default, as $TASKHARBOR_HTTP_ALLOW does:
    `["localhost:8080", "10.1.0.0/16"]`.

    `worker_retry` is the policy of its workers, unless a worker is given one: for jobs that have none of their own, and
    the cap on every job's limit. None means that without a policy of its own a job's first failure is its last.

    `include` names modules that declare tasks of this harbor: `["shop.orders", "shop.mail"]`. Workers and the command
    line import them, after the module that makes the harbor.

    `payload_codec` encodes what the store keeps of payloads, results, step results and progress values, so that they
    can be encrypted at rest. Producers, workers and readers of plain values need the same one.

    `version` is that of the application's code, which workers store with each failure. Without it, it is
    $TASKHARBOR_VERSION, else the version of the distribution named like the package that makes the harbor.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        clock: Clock | None = None,
        driver: Driver | None = None,
        retention: Mapping[str, float | None] | None = None,
        application: str = "default",
        http_allow: Iterable[str] | None = None,
        worker_retry: RetryPolicy | None = presets.DEFAULT,
        include: Iterable[str] = (),
        payload_codec: PayloadCodec | None = None,
        version: str | None = None,
    ) -> None:
        if driver is not None and (url is not None or clock is not None):
            raise ConfigurationError(
                "a driver brings its own store and clock, so url and clock say nothing beside it; "
                "give either the driver alone, or a URL and, if need be, a clock"
            )
        self.url = url if url is not None else os.environ.get("TASKHARBOR_URL") or DEFAULT_URL
        self.has_url = driver is None  # otherwise only the driver knows where its store is
        self.declares_url = url is not None or driver is not None  # or the environment has it
        self.command_words: str | None = None  # by which a command line named this store; see `client.naming`
        self.driver = driver if driver is not None else _driver_for(self.url, clock)
        self.retention = Retention.of(retention)
        self.application = checked_name("application", application)  # whose schedules the code declares
        self.http_allow = _http_allow(http_allow)
        self.include = checked_modules(include)
        self.sealing = Sealing(payload_codec)
        self._version = checked_version(version)
        self.worker_retry = checked_retry_of_code(worker_retry, "worker_retry")
        self.tasks: dict[str, Task[Any, Any, Any, Any]] = {}  # by name and by alias
        self.built_in: dict[str, Task[Any, Any, Any, Any]] = {}
        # Here, and not with their first use: a signal handler may ask first, having interrupted an import, and a
        # process may fork while another thread makes its first enqueue.
        import uuid_utils  # noqa: F401 - what makes ids

        from taskharbor.client.jobs import Jobs

        self.jobs = Jobs(self)
        self.events = Events()
        self.middlewares: list[Middleware] = []
        self._streams: dict[tuple[str, str], Stream] = {}  # by topic and brokers
        self.tracing: Tracing | None = None  # set by `telemetry.tracing.instrument`
        # The module that created this harbor; handler processes import it first.
        self.made_in: list[str] = [sys._getframe(1).f_globals.get("__name__", "")]
        self.start_hooks: list[Callable[[], Any]] = []
        self.stop_hooks: list[Callable[[], Any]] = []
        if url is None and driver is None and self.url == DEFAULT_URL:
            logger.info("jobs are kept in %s", os.path.abspath("taskharbor.db"))

    def __repr__(self) -> str:
        return (
            f"<Harbor on {type(self.driver).__name__} with {counted(len(set(self.tasks.values())), 'task')}>"
        )

    @property
    def _driver(self) -> Driver:
        return self.driver

    @cached_property
    def version(self) -> str | None:
        """The version of the application's code, if it was given or can be found."""
        return self._version if self._version is not None else found_version(next(iter(self.made_in), ""))

    # Each is imported when it is first asked for: a program that declares tasks and enqueues starts sooner.

    @cached_property
    def dlq(self) -> DeadLetters:
        """Dead jobs: `harbor.dlq.list()`, `harbor.dlq.requeue(id)` and so on."""
        from taskharbor.client.dead_letters import DeadLetters

        return DeadLetters(self)

    @cached_property
    def queues(self) -> Queues:
        """Queues: `harbor.queues.list()`, `harbor.queues.pause(name)` and so on."""
        from taskharbor.client.queues import Queues

        return Queues(self)

    @cached_property
    def holds(self) -> Holding:
        """Tasks and tags whose jobs are kept back: `harbor.holds.list()` and so on."""
        from taskharbor.client.holds import Holding

        return Holding(self)

    @cached_property
    def streams(self) -> Streams:
        """What live stream workers read: `harbor.streams.list()`."""
        from taskharbor.client.streams import Streams

        return Streams(self)

    @cached_property
    def workflows(self) -> Workflows:
        """Stored workflows: `harbor.workflows.get(id)` and so on."""
        from taskharbor.client.workflows import Workflows

        return Workflows(self)

    @cached_property
    def schedules(self) -> Schedules:
        """Recurring jobs: `harbor.schedules.add(name, task, payload, schedule=…)` and so on."""
        from taskharbor.client.schedules import Schedules

        return Schedules(self)

    @cached_property
    def audit(self) -> Audit:
        """Who did what and when: `harbor.audit.list(actor=…)` and so on."""
        from taskharbor.client.audit import Audit

        return Audit(self)

    @cached_property
    def stats(self) -> Stats:
        """What workers have counted: `harbor.stats.series(queue=…)` and so on."""
        from taskharbor.client.stats import Stats

        return Stats(self)

    def acting_as(self, name: str) -> AbstractContextManager[None]:
        """Record the actions inside this block under this name: `with harbor.acting_as("ana"): …`.

        It holds for the thread or coroutine that enters the block, in synchronous and asynchronous code. Without it,
        an action is recorded under the user and host of the process.
        """
        return acting_as(name)

    # -- declaring --

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[Concatenate[Context, P], Coroutine[Any, Any, R], P, R]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Task[Concatenate[Context, P], R, P, R]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Task[P, Coroutine[Any, Any, R], P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, P, R]: ...
    @overload
    def task(self, **declared: Unpack[TaskOptions]) -> Declaration: ...
    def task(self, function: Any = None, /, **declared: Any) -> Any:  # type: ignore[misc]
        """Declare a function as the handler of a task; the options are the defaults of its jobs.

        `aliases` are names that jobs of this task may be stored under as well, `parameter_aliases` maps
        old names of parameters to the present ones. With `raw=True` the function takes its whole payload as one
        parameter, `payload: dict[str, Any]`, and decides itself what is wrong with it. `isolation="process"` runs
        the handler in a process of its own, which a timeout kills; it has to be at the top level of a module that can
        be imported. With `schedule` it recurs: a worker makes it so when it starts.
        """
        from taskharbor.client.declaring import Declaration

        declaration = Declaration(self, **declared)
        return declaration if function is None else declaration(function)

    def _register(self, task: Task[Any, Any, Any, Any]) -> None:
        """Make a task known by its name and its aliases."""
        names = (task.name, *task.aliases)
        for name in names:
            known = self.tasks.get(name)
            # The same function may be declared again: a module is reloaded, a notebook's cell is run twice.
            if known is not None and known.origin != task.origin:
                raise ConfigurationError(
                    f"two tasks are called {name!r}: {known.origin} and {task.origin}; "
                    "give one of them another name"
                )
        self.tasks.update(dict.fromkeys(names, task))

    def _import_included(self) -> None:
        """Import the modules that declare further tasks; from `__init__` they could not import this harbor yet."""
        for name in self.include:
            try:
                import_module(name)
            except ModuleNotFoundError as error:
                if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                    raise ConfigurationError(
                        f"include names {name!r}, but no module is called {error.name!r} on Python's path; write it as "
                        'in an import: "shop.orders"'
                    ) from None
                raise _not_imported(name, error) from error
            except Exception as error:
                raise _not_imported(name, error) from error

    def _known(self, name: str) -> Task[Any, Any, Any, Any] | None:
        """Return the task of this name, declared or built in."""
        return self.tasks.get(name) or builtin_tasks.task_of(self, name)

    def on(self, name: EventName) -> Callable[[F], F]:
        """Subscribe to an event: enqueued, started, succeeded, failed, retried, dead, lost, cancelled or stuck."""
        self.events.check_name(name)
        return lambda subscriber: self.events.subscribe(name, subscriber)

    def on_worker_start(self, hook: F) -> F:
        """Register a hook that each worker process calls once before its first job, to open what handlers share."""
        self.start_hooks.append(hook)
        return hook

    def on_worker_stop(self, hook: F) -> F:
        """Register a hook that each worker process calls once after its last job."""
        self.stop_hooks.append(hook)
        return hook

    def middleware(self, wrapper: Middleware) -> Middleware:
        """Wrap every execution: `async def wrapper(ctx, call): …; return await call()`."""
        self.middlewares.append(wrapper)
        return wrapper

    # -- enqueueing --

    async def aenqueue(
        self, task: str, payload: Mapping[str, Any] | None = None, **options: Unpack[EnqueueOptions]
    ) -> Job[Any]:
        """Store a job by the task's name, without having its handler's code."""
        [job] = await self._store([self._by_name(task, payload, dict(options))])
        return job

    enqueue = sync_method(aenqueue)

    async def aenqueue_many(self, signatures: Iterable[Signature[Any]]) -> list[Job[Any]]:
        """Store a job for each signature, of any tasks: one commit, all or nothing."""
        return await self._store(
            [_checked_signature(each, index).new_job(index) for index, each in enumerate(signatures)]
        )

    enqueue_many = sync_method(aenqueue_many)

    def _by_name(self, name: str, payload: Mapping[str, Any] | None, options: dict[str, Any]) -> NewJob:
        refuse_stranger(self, options)
        checked = checked_options(options)
        name = checked_name("task", name)
        task = self._known(name)
        text = encode_payload({} if payload is None else payload)
        if task is None:
            return new_job(name, text, checked)
        refuse_none_of_declared(options, task._options)
        task.validate(text)  # the declaration is known here, so check against it
        return new_job(task.name, text, merged(task._options, checked))

    async def _store(self, jobs: Sequence[NewJob]) -> list[Job[Any]]:
        """Store jobs; return a handle for each, of the existing job where there was one."""
        forbid_during_import("a job was enqueued")
        block = block_of(self)
        if block is not None:
            block.refuse_when_over()
        jobs = self.sealing.sealed(await with_expiries(jobs, self.driver))
        if isinstance(jobs, AlikeJobs) and not self.driver.stores_in_turn:
            jobs.made_until(len(jobs))  # before a store begins with them
        if self.tracing is None:
            answers = await self.driver.enqueue(jobs)
        else:
            jobs, answers = await self.tracing.send(jobs, self.driver.enqueue)
        if block is None and self.events.wanted("enqueued"):
            self._report_enqueued(jobs, answers)
        if not any(answer.existed for answer in answers):
            if isinstance(jobs, AlikeJobs):
                return [
                    Job((jobs.shared, answer, payload), self, False)
                    for answer, payload in zip(answers, jobs.payloads, strict=True)
                ]
            return [
                Job((job, answer, job.payload), self, False)
                for job, answer in zip(jobs, answers, strict=True)
            ]
        existing = await self.driver.get([answer.id for answer in answers])
        return [
            Job(found or (job, answer, job.payload), self, existed=answer.existed)
            for job, answer, found in zip(jobs, answers, existing, strict=True)
        ]

    def _report_enqueued(self, jobs: Sequence[NewJob], answers: list[Enqueued]) -> None:
        reports = Reports(self.events)
        for job, answer in zip(jobs, answers, strict=True):
            if not answer.existed:
                reports.enqueued(job, job.options, answer.enqueued_at)

    def _report_cancelled(self, record: JobRecord) -> None:
        """Report a job that an operator cancelled while it was not running."""
        Reports(self.events).cancelled(record)

    def _report_dead_lettered(self, record: JobRecord) -> None:
        """Report a job that an operator put into the dead-letter queue."""
        Reports(self.events).dead_lettered(record)

    def transaction(self, connection: Any) -> Transaction:
        """Enqueue inside the caller's own transaction: the jobs and workflows exist if and only if it commits.

        `with harbor.transaction(connection):` or `async with …`, which do the same. Only enqueueing takes part in it.
        No `enqueued` event is emitted for these jobs, because only the caller knows whether they were committed.
        """
        return Transaction(self, connection)

    # -- streams --

    def stream(
        self,
        topic: str,
        *,
        brokers: str | list[str] | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> Stream:
        """Return the producer of a Kafka topic: `harbor.stream("tasks").publish(send.s(to="a@b.c"))`.

        `brokers` are those of $TASKHARBOR_BROKERS, unless they are given. The producer is made once for each topic and
        brokers, with the settings of the first call, and kept until it is closed. It needs the extra
        `taskharbor[kafka]`.
        """
        try:
            from taskharbor.streams.brokers import Brokers
            from taskharbor.streams.producer import Stream
            from taskharbor.streams.topic_names import checked_topic
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "streams need the Kafka client; install it with: pip install 'taskharbor[kafka]'"
            ) from error
        topic = checked_topic(topic)
        addresses = brokers if brokers is not None else os.environ.get("TASKHARBOR_BROKERS")
        if not addresses:
            raise ConfigurationError(
                'no brokers are named; give them, harbor.stream("tasks", brokers="localhost:9092"), '
                "or set $TASKHARBOR_BROKERS"
            )
        named = Brokers(addresses, settings)
        stream = self._streams.get((topic, named.addresses))
        if stream is None or stream.is_closed:
            stream = self._streams[topic, named.addresses] = Stream(self, topic, named)
        return stream

    # -- serving --

    def asgi(
        self, *, authorize: Authorize | None = None, trusted_proxies: Iterable[str] | None = None
    ) -> Starlette:
        """Return the dashboard and the REST interface as an ASGI application, to be served or mounted into another one.

            app.mount("/jobs", harbor.asgi())

        Callers show a token that `taskharbor token create` made, unless `authorize` decides: it is given the request,
        and answers with "read", "write", "admin", or None to refuse; or with a role and the name that the audit records
        the caller's actions under, such as `("write", "ana")`. Wrong tokens and streams are counted by the
        address that connects, or by what `X-Forwarded-For` says where one of `trusted_proxies` connects (addresses and
        networks). It needs the extra: `taskharbor[server]`.
        """
        try:
            from taskharbor.server.app import application
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                "the dashboard and the REST interface need the extra: "
                f"pip install 'taskharbor[server]' ({error.name} is missing)"
            ) from error
        if authorize is not None and not callable(authorize):
            raise ConfigurationError(
                "authorize is a function that takes the request and returns a role or None, "
                f"not {shorten(authorize)}"
            )
        return application(self, authorize=authorize, trusted_proxies=trusted_proxies)

    def lifespan(self, *, worker: bool | Worker = False, inner: Inner | None = None) -> Lifespan:
        """Return a lifespan for an ASGI application, such as one of FastAPI or Starlette.

            app = FastAPI(lifespan=harbor.lifespan(worker=True))

        With `worker=True`, or a `Worker` of your own, the application executes jobs: the worker starts with it, and
        shuts down gracefully before it ends. `inner` is the application's own lifespan, inside which the worker runs.
        The harbor is closed at the end. `async with harbor.lifespan(…):` does the same inside a lifespan.
        """
        from taskharbor.integrations.lifespan import Lifespan

        return Lifespan(self, worker, inner)

    # -- upkeep --

    async def amigrate(self) -> list[str]:
        """Bring the store's schema up to date; return the names of the applied migrations."""
        return await self.driver.migrate()

    migrate = sync_method(amigrate)

    async def aprune(self, limit: int | None = None) -> int:
        """Delete finished jobs that are older than the retention allows, at most `limit`; return how many."""
        refuse_inside_transaction(self, "prune()")
        return await self.retention.prune(self.driver, limit)

    prune = sync_method(aprune)

    async def _prune_schedules(self) -> int:
        """Delete old attempts of recurring jobs, which never finish; return how many."""
        keep, seconds = self.retention.history_count, self.retention.history
        before = FIRST_INSTANT if seconds is None else await self.driver.now() - seconds_to_micros(seconds)
        return await self.schedules._prune_history(ATTEMPTS_MAX if keep is None else keep, before)

    async def _collect_expired(self, job_id: str) -> bool:
        """Settle the loss of a job that only looks running because its lease has expired."""
        collected = False
        while True:
            [record] = await self.driver.get([job_id])
            if record is None or not record.lease_expired:
                return collected
            # Leases that expired earlier come first, in batches of limited size.
            if not await self._collect_all_expired():
                return collected
            collected = True

    async def _collect_all_expired(self) -> bool:
        """Settle the jobs of expired leases, and report them as a worker would."""
        from taskharbor.rescue import rescue_expired_leases

        return bool(await rescue_expired_leases(self.driver, reports=Reports(self.events, logger)))

    def _decode_result(self, record: JobRecord) -> Any:
        """Decode what the job's handler returned, in the type that its task declares if the task is known."""
        if record.result is None:
            return None
        text = self.sealing.open(record.result, "the result")
        task = self.tasks.get(record.task)
        return decode_result(text) if task is None else task.decode_result(text)

    # -- closing --

    async def aclose(self) -> None:
        """Let go of the store. A harbor that is used again opens it anew."""
        await self.events.aclose()  # first: a subscriber may still use the store
        await self.driver.close()

    close = sync_method(aclose)

    def __enter__(self) -> Harbor:
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    async def __aenter__(self) -> Harbor:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.aclose()
        return False


def _driver_for(url: str, clock: Clock | None) -> Driver:
    from taskharbor.drivers.registry import driver_for  # the importing of it waits for a harbor that needs it

    return driver_for(url, clock)


def checked_modules(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigurationError(
            f'include must be a list of modules such as ["shop.orders"], not {shorten(names)}'
        )
    modules = tuple(names)
    for name in modules:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ConfigurationError(
                f'include takes names of modules as an import writes them, such as "shop.orders", not {shorten(name)}'
            )
    return modules


def _not_imported(name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"{name}, which include names, cannot be imported: {type(error).__name__}: {error}"
    )


def _http_allow(entries: Iterable[str] | None) -> AllowList:
    if entries is None and not os.environ.get("TASKHARBOR_HTTP_ALLOW"):
        return ()
    from taskharbor.http.addresses import allow_list

    return allow_list(entries)


def _checked_signature(signature: Signature[Any], index: int) -> Signature[Any]:
    if not isinstance(signature, Signature):
        raise ConfigurationError(
            f"at index {index}: enqueue_many takes signatures such as task.s(1, x=2), not {type(signature).__name__}"
        )
    return signature
