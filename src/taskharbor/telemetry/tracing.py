"""Tracing with OpenTelemetry: a span for each enqueue and each attempt, and the context that connects them.

    enqueue → `send` span → its context in the job's meta → `process` span of each attempt → steps, HTTP requests

`instrument(harbor)` switches it on. The names follow OpenTelemetry's conventions for messaging. No span holds an
error's text, a payload, a URL or a header: those may contain secrets, and the job's id leads to them.

Only the API of OpenTelemetry is needed. Without an SDK its spans record nothing, and no job carries a context of ours.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from msgspec.structs import replace

from taskharbor.codec import shorten
from taskharbor.context import Context, current_execution
from taskharbor.drivers.base import AlikeJobs
from taskharbor.errors import AttemptTimedOut, ConfigurationError, RemoteError
from taskharbor.records import AttemptStatus, Delivery, NewJob, StopReason
from taskharbor.rules.meta import checked_meta, read_meta
from taskharbor.rules.outcome import Crashed, Failed, HandedBack, Unrunnable
from taskharbor.rules.retry import type_name

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace as otel
    from opentelemetry.trace import TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"tracing needs the extra: pip install 'taskharbor[otel]' ({error.name} is missing)"
    ) from error

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.http.urls import Target
    from taskharbor.worker.pipeline.execution import Execution

logger = logging.getLogger("taskharbor.tracing")

T = TypeVar("T")
Carrier = dict[str, str]  # `traceparent`, and `tracestate` where there is one

CRASHED = "process_crashed"  # the error's type where no exception has one
_W3C = TraceContextTextMapPropagator()
_NOTHING = contexts.Context()


def instrument(
    harbor: Harbor, *, trace: Literal["link", "child"] = "link", tracer_provider: TracerProvider | None = None
) -> None:
    """Make spans for the jobs that this harbor enqueues and that its workers execute.

    Call it where the harbor is made. Each attempt begins a trace of its own, with a link to the span that enqueued the
    job; `trace="child"` makes it a child of that span instead. Without `tracer_provider` the global provider counts.
    It needs the extra: `taskharbor[otel]`.
    """
    if trace not in ("link", "child"):
        raise ConfigurationError(f'trace must be "link" or "child", not {shorten(trace)}')
    from taskharbor import __version__

    tracer = otel.get_tracer("taskharbor", __version__, tracer_provider)
    harbor.tracing = Tracing(tracer, is_child=trace == "child", is_on=tracer_provider is not None)


class Tracing:
    """Makes the spans of one harbor."""

    def __init__(self, tracer: otel.Tracer, *, is_child: bool, is_on: bool) -> None:
        self._tracer = tracer
        self._is_child = is_child  # an attempt is a child of the span that enqueued its job
        self._is_on = is_on

    @property
    def is_on(self) -> bool:
        """Whether there is a provider. A global one counts from when it is set; until then tracing does no work."""
        if not self._is_on:
            self._is_on = not isinstance(otel.get_tracer_provider(), otel.ProxyTracerProvider)
        return self._is_on

    # -- enqueueing --

    async def send(
        self, jobs: Sequence[NewJob], store: Callable[[Sequence[NewJob]], Awaitable[T]]
    ) -> tuple[Sequence[NewJob], T]:
        """Store jobs in a `send` span, whose context they carry; return them as stored, and the store's answer."""
        if not jobs or not self.is_on:
            jobs = _carrying(jobs, self.current())
            return jobs, await store(jobs)
        samples = [jobs.shared] if isinstance(jobs, AlikeJobs) else jobs
        given = {parent for job in samples if (parent := _own_traceparent(job)) is not None}
        attributes = _attributes_of_jobs("send", samples)
        if len(jobs) > 1:
            attributes["messaging.batch.message_count"] = len(jobs)
        else:
            attributes["messaging.message.id"] = jobs[0].id
        span = self._start(
            "send",
            attributes,
            kind=otel.SpanKind.PRODUCER,
            links=[link for parent in sorted(given) for link in _links({"traceparent": parent})],
        )
        try:
            jobs = _carrying(jobs, _carrier_of(span))
            answer = await store(jobs)
        except BaseException as error:
            _fail(span, error)
            raise
        finally:
            _end(span)
        return jobs, answer

    @contextmanager
    def within(self, carrier: Carrier) -> Iterator[None]:
        """Enqueue within the context of a request, unless a span of this process is current: it knows more."""
        if otel.get_current_span().get_span_context().is_valid:
            yield
            return
        token = contexts.attach(_W3C.extract(carrier, contexts.get_current()))
        try:
            yield
        finally:
            contexts.detach(token)

    def create(self, job: NewJob) -> NewJob:
        """Return a child that carries the context of a `create` span; its parent's success stores it."""
        if not self.is_on:  # such as in a handler's process, where the attempt's context is current
            [carrying] = _carrying([job], self.current())
            return carrying
        attributes = _attributes_of_jobs("create", [job]) | {"messaging.message.id": job.id}
        span = self._start("create", attributes, kind=otel.SpanKind.PRODUCER)
        _end(span)
        [carrying] = _carrying([job], _carrier_of(span))
        return carrying

    # -- attempts --

    async def attempt(self, ctx: Context, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Execute an attempt in its `process` span: a middleware around all others."""
        execution = ctx._execution
        carrier = read_meta(execution.claimed.meta)
        span = self._start(
            "process",
            _attributes_of_attempt(execution),
            kind=otel.SpanKind.CONSUMER,
            context=_W3C.extract(carrier, _NOTHING) if self._is_child else _NOTHING,
            links=() if self._is_child else _links(carrier),
        )
        status, failure = AttemptStatus.LOST, None
        try:
            with _current(span):
                value = await call()
            status, failure = _status_of_return(execution, value)
            return value
        except GeneratorExit:  # the loop ends and leaves the attempt behind
            raise
        except BaseException as error:
            status, failure = _status_of_error(execution, error)
            raise
        finally:
            span.set_attribute("taskharbor.outcome", str(status))
            if failure is not None:
                span.set_attribute("error.type", failure)
                span.set_status(otel.StatusCode.ERROR)
            _end(span)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Call the function of a durable step in a span of its own."""
        span = self._start("step", {"taskharbor.step": name}, name="step")
        try:
            with _current(span):
                yield
        except BaseException as error:
            _fail(span, error)
            raise
        finally:
            _end(span)

    @contextmanager
    def request(self, method: str, target: Target) -> Iterator[Request]:
        """Make the request of an HTTP job in a span of its own."""
        attributes = {
            "http.request.method": method,
            "server.address": target.host,
            "server.port": target.port,
            "url.scheme": target.scheme,
        }
        span = self._start(method, attributes, kind=otel.SpanKind.CLIENT, name=method)
        request = Request(span)
        try:
            yield request
        except BaseException as error:
            _fail(span, error, request.failure)
            raise
        finally:
            _end(span)

    def current(self) -> Carrier | None:
        """Return the context of the current span, for a handler's process."""
        return _carrier_of(otel.get_current_span())

    # -- spans --

    def _start(
        self,
        operation: str,
        attributes: Mapping[str, Any],
        *,
        name: str | None = None,
        kind: otel.SpanKind = otel.SpanKind.INTERNAL,
        context: contexts.Context | None = None,
        links: Sequence[otel.Link] = (),
    ) -> otel.Span:
        """Start a span. A processor or a sampler that fails does not fail the job."""
        if name is None:
            queue = attributes.get("messaging.destination.name")
            name = operation if queue is None else f"{operation} {queue}"
        try:
            return self._tracer.start_span(name, context, kind, attributes, links, record_exception=False)
        except Exception:
            logger.exception("a span could not be started: %s", name)
            return otel.INVALID_SPAN


class Request:
    """The span of a request that an HTTP job makes."""

    def __init__(self, span: otel.Span) -> None:
        self._span = span
        self.headers = tuple((_carrier_of(span) or {}).items())  # which the request takes along
        self.failure: str | None = None  # a status that is an error, by the conventions for HTTP

    def answered(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        if status >= 400:
            self.failure = str(status)


def enter(carrier: Carrier) -> None:
    """Make the attempt's span the current one, in the handler's process."""
    contexts.attach(_W3C.extract(carrier, contexts.get_current()))


@contextmanager
def _current(span: otel.Span) -> Iterator[None]:
    token = contexts.attach(otel.set_span_in_context(span))
    try:
        yield
    except GeneratorExit:
        # The coroutine is closed from outside of its context, where the token is unknown. Its context ends with it.
        raise
    except BaseException:
        contexts.detach(token)
        raise
    else:
        contexts.detach(token)


def _fail(span: otel.Span, error: BaseException, failure: str | None = None) -> None:
    """Mark a span whose work raised. What only ends the work, such as a cancellation, is no error."""
    if isinstance(error, Exception):
        span.set_attribute("error.type", failure or type_name(error))
        span.set_status(otel.StatusCode.ERROR)


def _end(span: otel.Span) -> None:
    try:
        span.end()
    except Exception:
        logger.exception("a span could not be ended")


# -- the context that a job carries ----------------------------------------------------------------


def _carrier_of(span: otel.Span) -> Carrier | None:
    """Return the W3C headers of this span's context, or None if there is no SDK that gives it one."""
    if not span.get_span_context().is_valid:
        return None
    carrier: Carrier = {}
    _W3C.inject(carrier, otel.set_span_in_context(span, _NOTHING))
    return carrier


def _carrying(jobs: Sequence[NewJob], carrier: Carrier | None) -> Sequence[NewJob]:
    """Return the jobs with this context in their meta, but for those that were given a context of their own."""
    if carrier is None:
        return jobs
    if isinstance(jobs, AlikeJobs):
        jobs.shared = _with(jobs.shared, carrier)
        return jobs
    return [_with(job, carrier) for job in jobs]


def _with(job: NewJob, carrier: Carrier) -> NewJob:
    if _own_traceparent(job) is not None:
        return job
    for entries in (carrier, {"traceparent": carrier["traceparent"]}):
        try:
            kept = {name: text for name, text in read_meta(job.meta).items() if name != "tracestate"}
            return replace(job, meta=checked_meta({**kept, **entries}))
        except ConfigurationError:  # more than fits
            continue
    return job


def _own_traceparent(job: NewJob) -> str | None:
    """Return the context that the caller gave with the job. One that it only inherited is not its own."""
    if job.meta is None or (own := read_meta(job.meta).get("traceparent")) is None:
        return None
    execution = current_execution.get()
    if execution is not None and read_meta(execution.claimed.meta).get("traceparent") == own:
        return None
    return own


def _links(carrier: Mapping[str, str]) -> list[otel.Link]:
    creator = otel.get_current_span(_W3C.extract(carrier, _NOTHING)).get_span_context()
    return [otel.Link(creator)] if creator.is_valid else []


# -- attributes ------------------------------------------------------------------------------------


def _attributes_of_jobs(operation: str, jobs: Sequence[NewJob]) -> dict[str, Any]:
    """Return what all of these jobs have in common."""
    return _attributes(
        operation,
        _only(job.queue for job in jobs),
        _only(job.task for job in jobs),
        _only(job.options.correlation_id for job in jobs),
        _only(job.options.workflow for job in jobs),
    )


def _attributes_of_attempt(execution: Execution) -> dict[str, Any]:
    claimed, options = execution.claimed, execution.options
    attributes = _attributes("process", claimed.queue, claimed.task, options.correlation_id, options.workflow)
    attributes["messaging.message.id"] = claimed.id
    attributes["taskharbor.attempt"] = claimed.number
    return attributes


def _attributes(
    operation: str, queue: str | None, task: str | None, correlation_id: str | None, workflow: str | None
) -> dict[str, Any]:
    attributes = {
        "messaging.system": "taskharbor",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "messaging.message.conversation_id": correlation_id,
        "taskharbor.task": task,
        "taskharbor.workflow.id": workflow,
    }
    return {name: value for name, value in attributes.items() if value is not None}


def _only(values: Iterable[str | None]) -> str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


# -- outcomes --------------------------------------------------------------------------------------


def _status_of_return(execution: Execution, value: Any) -> tuple[AttemptStatus, str | None]:
    """Return the status of an attempt whose handler returned, as far as it is known before the settle."""
    from taskharbor.worker.handlers.outcomes import outcome_of_return

    if execution.asked_to_stop and execution.is_lost:
        return _status_of_stop(execution, execution.interrupted or "lease_lost")
    if execution.is_late:
        return _status_of_stop(execution, "timeout")
    outcome = outcome_of_return(value)
    if isinstance(outcome, Failed):  # the result cannot be stored
        return AttemptStatus.FAILED, outcome.info.type_name
    return AttemptStatus.SUCCEEDED, None


def _status_of_error(execution: Execution, error: BaseException) -> tuple[AttemptStatus, str | None]:
    """Return the status of an attempt that raised, and the type of its error, if it has one.

    The order is that of `outcomes.outcome_of_error`, which says the same at length.
    """
    from taskharbor.worker.handlers.outcomes import of_sleep, stop_in

    if execution.asked_to_stop and execution.is_lost:
        return _status_of_stop(execution, execution.interrupted or "lease_lost")
    if (reason := stop_in(execution, error) or execution.interrupted) is not None:
        return _status_of_stop(execution, reason)
    if of_sleep(error) is not None:
        return AttemptStatus.SLEPT, None
    if execution.disturbed:
        return _status_of_stop(execution, "shutdown")
    if isinstance(error, RemoteError) and error.outcome is not None:
        return _status_of_process(error.outcome)
    if isinstance(error, AttemptTimedOut):
        return AttemptStatus.TIMED_OUT, type_name(error)
    return AttemptStatus.FAILED, type_name(error)


def _status_of_process(outcome: Any) -> tuple[AttemptStatus, str | None]:
    match outcome:
        case Failed(info, timed_out=timed_out):
            return AttemptStatus.TIMED_OUT if timed_out else AttemptStatus.FAILED, info.type_name
        case Crashed():
            return AttemptStatus.LOST, CRASHED
        case HandedBack() | Unrunnable():
            return AttemptStatus.RELEASED, None
    return AttemptStatus.FAILED, RemoteError.__name__


def _status_of_stop(execution: Execution, reason: StopReason) -> tuple[AttemptStatus, str | None]:
    match reason:
        case "cancel":
            return AttemptStatus.CANCELLED, None
        case "timeout":
            return AttemptStatus.TIMED_OUT, TimeoutError.__name__
        case "lease_lost":
            return AttemptStatus.LOST, "lease_lost"
        case "shutdown":
            is_once = execution.delivery is Delivery.AT_MOST_ONCE
            return AttemptStatus.CANCELLED if is_once else AttemptStatus.RELEASED, None
