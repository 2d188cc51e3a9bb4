"""The built-in task `http`, as a worker knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import cache
from importlib.util import find_spec
from string import digits, punctuation
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from taskharbor import presets
from taskharbor.client.task import Task
from taskharbor.clock import MICROS_PER_SECOND, wait_for
from taskharbor.context import Context
from taskharbor.errors import AttemptTimedOut, PayloadError, Unrecoverable
from taskharbor.http import TASK_NAME, signing
from taskharbor.http.payload import TIMEOUT_SECONDS, Call, checked_call
from taskharbor.http.secrets import secrets_in
from taskharbor.rules.fingerprint import CAUSE

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.http.client import Network, Outgoing
    from taskharbor.telemetry.tracing import Request

T = TypeVar("T")

_PRINTABLE = f" {digits}{punctuation}"  # stays as it is in a header; letters beyond ASCII are percent-encoded
SECRETS_LENGTH_MAX = 4_096  # characters of headers; up to this, secrets are searched for on the loop itself
SCRUB_WORK_MAX = 2**22  # secrets times characters that are scrubbed there
MISSING_EXTRA = "the task 'http' needs the extra: pip install 'taskharbor[http]'"


class HttpTimeout(AttemptTimedOut):
    """The exchange took longer than its timeout."""


@cache
def is_installed() -> bool:
    return find_spec("httpx2") is not None and find_spec("httpcore2") is not None


def http_task(harbor: Harbor, network: Network | None = None) -> Task[Any, Any, Any, Any]:
    """The task `http` of a harbor; `network` replaces the way out, in tests."""

    async def http(
        ctx: Context,
        url: str,
        method: str | None = None,
        headers: dict[str, str] | None = None,
        body: Any = None,
        timeout: float | None = None,
        follow_redirects: bool = False,
        signing_secret: str | list[str] | None = None,
    ) -> dict[str, Any]:
        """Call a URL. A status of 2xx is success, anything else a failure."""
        payload = {
            "url": url,
            "method": method,
            "headers": headers,
            "body": body,
            "timeout": timeout,
            "follow_redirects": follow_redirects,
            "signing_secret": signing_secret,
        }
        return await _call(ctx, harbor, payload, network)

    return Task(
        harbor, http, name=TASK_NAME, options={"retry": presets.SCHEDULE}, check_arguments=checked_call
    )


async def _call(
    ctx: Context, harbor: Harbor, payload: dict[str, Any], network: Network | None
) -> dict[str, Any]:
    try:
        call = checked_call(payload)
    except PayloadError as error:
        raise Unrecoverable(str(error)) from None
    if harbor.tracing is None:
        return await _exchanged(ctx, harbor, call, network)
    with harbor.tracing.request(call.method, call.target) as request:
        return await _exchanged(ctx, harbor, call, network, request)


async def _exchanged(
    ctx: Context, harbor: Harbor, call: Call, network: Network | None, traced: Request | None = None
) -> dict[str, Any]:
    from taskharbor.http.answers import HttpError, failure_of, result_of, told_without
    from taskharbor.http.client import SYSTEM, AddressRefused, exchange

    clock = harbor.driver.clock
    outgoing = _outgoing(ctx, call, clock.now(), () if traced is None else traced.headers)
    # The worker enforces the job's own timeout, if it has one.
    seconds = call.timeout or (None if ctx.deadline is not None else TIMEOUT_SECONDS)
    length = sum(len(value) for _, value in call.headers)
    secrets = await _beside(length, SECRETS_LENGTH_MAX, _secrets, call, outgoing)  # grows with each redirect
    sending = exchange(
        outgoing,
        harbor.http_allow,
        follow_redirects=call.follow_redirects,
        network=network or SYSTEM,
        secrets=secrets,
    )
    answer, failure, cause = None, "", ""
    kind: type[Exception] = HttpError
    try:
        answer = await wait_for(clock, sending, seconds)
    except TimeoutError:
        kind, failure = HttpTimeout, f"no full answer from {call.target} within {seconds:g} s"
    except (HttpError, AddressRefused) as error:
        kind, failure = type(error), str(error)
    except Exception as error:  # noqa: BLE001 - a library's error may quote what it was given
        cause = type(error).__name__
        failure = f"the exchange with {call.target} failed: {cause}: {error}"
    if traced is not None and answer is not None:
        traced.answered(answer.status)
    # Raised only here: an error that is raised while another is handled carries that one along, unscrubbed.
    work = len(secrets) * (len(failure) if answer is None else len(answer.body))
    if answer is None:
        told = kind(await _beside(work, SCRUB_WORK_MAX, told_without, secrets, failure))
        raise _caused(told, call.target.host, cause or kind.__name__)
    if not answer.is_success:
        told = await _beside(work, SCRUB_WORK_MAX, failure_of, answer, call.target, secrets, clock.now())
        raise _caused(told, call.target.host, str(answer.status))
    return await _beside(work, SCRUB_WORK_MAX, result_of, answer, secrets)


def _caused(error: Exception, *cause: str) -> Exception:
    """Name the cause of a failure by which failures are grouped: the host, and what it answered; never the body."""
    setattr(error, CAUSE, cause)
    return error


async def _beside(size: int, size_max: int, function: Callable[..., T], *arguments: Any) -> T:
    """Call the function here, or in a thread if it has so much to do that it would block the loop."""
    if size > size_max:
        return await asyncio.to_thread(function, *arguments)
    return function(*arguments)


def _secrets(call: Call, outgoing: Outgoing) -> list[str]:
    """Return every secret in the request, including the signatures in our own headers."""
    signatures = [each for each in outgoing.headers if each[0].lower() == signing.HEADERS[-1]]
    return secrets_in(call.target.path, [*call.headers, *signatures], call.signing_secrets)


def _outgoing(ctx: Context, call: Call, now: int, trace_headers: Iterable[tuple[str, str]]) -> Outgoing:
    from taskharbor.http.client import Outgoing

    message_id = run_id(ctx)
    own = [
        ("User-Agent", _user_agent()),
        ("Accept", "*/*"),
        ("Idempotency-Key", message_id),
        ("TaskHarbor-Job", ctx.job.id),
        ("TaskHarbor-Attempt", str(ctx.attempt)),
        *trace_headers,
    ]
    if ctx.correlation_id is not None:
        own.append(("X-Correlation-ID", quote(ctx.correlation_id, safe=_PRINTABLE)))
    given = {name.lower() for name, _ in call.headers}
    headers = [*call.headers, *(each for each in own if each[0].lower() not in given)]
    if call.signing_secrets:
        headers += signing.signature_headers(
            call.signing_secrets, message_id, now // MICROS_PER_SECOND, call.body or b""
        )
    return Outgoing(call.target, call.method, tuple(headers), call.body)


def run_id(ctx: Context) -> str:
    """Return an id that all attempts of a run share. A requeue or the next occurrence is a new run, with a new id."""
    return f"{ctx.job.id}-{ctx._execution.claimed.first_number}"


def _user_agent() -> str:
    from taskharbor import __version__

    return f"TaskHarbor/{__version__}"
