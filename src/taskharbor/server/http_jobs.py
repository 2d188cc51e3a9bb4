"""The second form of `POST /jobs`: call a URL, now, at the next occurrence of a schedule, or at every one."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from taskharbor.client.handle import Job
from taskharbor.client.options import new_id
from taskharbor.clock import from_micros
from taskharbor.errors import ConfigurationError, JobConflict
from taskharbor.http import TASK_NAME, http_payload
from taskharbor.http.addresses import refusal
from taskharbor.http.urls import parse as parse_url
from taskharbor.schedule import parse
from taskharbor.server.large_bodies import Place
from taskharbor.server.requests import Expression, FailureTaskInput, Input, Key, Name
from taskharbor.server.trace_context import store_traced

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from taskharbor.client.harbor import Harbor

RETRIES = 3  # if maxRetryCount is left out


class NewHttpJob(Input, kw_only=True):
    """A URL to call. A status of 2xx is success; anything else is retried after 1 s, 2 s, 4 s and so on, to 5 min.

    With a schedule it is called at every occurrence if `isRecurring`, else once, at the next one; without, at once.
    """

    api: Annotated[str, Meta(min_length=1, max_length=8_192, examples=["https://example.com/hook"])]
    schedule: Expression | None = None
    type: Annotated[
        Literal["AT_LEAST_ONCE", "AT_MOST_ONCE"], Meta(description="AT_MOST_ONCE is never retried.")
    ] = "AT_LEAST_ONCE"
    is_recurring: bool = False
    max_retry_count: Annotated[int, Meta(ge=0, le=9_999)] = RETRIES
    method: Annotated[str, Meta(max_length=16)] | None = None
    headers: dict[str, str] | None = None
    body: Any = None
    timezone: Annotated[str, Meta(max_length=64)] = "UTC"
    timeout: Annotated[float, Meta(gt=0, le=3_600, description="Seconds an attempt may take.")] = 30.0
    name: Annotated[str, Meta(min_length=1, max_length=200, description="Of the schedule.")] | None = None
    queue: Name | UnsetType = UNSET
    idempotency_key: Key | None = None
    failure_task: FailureTaskInput | None | UnsetType = UNSET


async def enqueue_http_job(
    harbor: Harbor, given: NewHttpJob, place: Place, headers: Headers, more: Mapping[str, Any]
) -> Job[Any]:
    """Enqueue the job, or find the one that has the same key or name; `more` are further options of it."""
    refuse_closed(harbor, TASK_NAME, {"url": given.api})
    request = {name: getattr(given, name) for name in ("method", "headers", "body", "timeout")}
    payload = await place.beside(partial(http_payload, given.api, **request))
    options: dict[str, Any] = {"delivery": given.type.lower(), "max_retries": given.max_retry_count, **more}
    if given.queue is not UNSET:
        options["queue"] = given.queue
    if given.is_recurring:
        return await _recurring(harbor, given, payload, options)
    if given.name is not None:
        raise ConfigurationError("name is for a schedule; set isRecurring as well, or leave it out")
    if given.schedule is not None:
        now = from_micros(await harbor.driver.now())
        options["run_at"] = parse(given.schedule, given.timezone).next_after(now)
    options["idempotency_key"] = given.idempotency_key
    new_job = await place.beside(harbor._by_name, TASK_NAME, payload, options)
    return await store_traced(harbor, new_job, headers)


async def _recurring(
    harbor: Harbor, given: NewHttpJob, payload: dict[str, Any], options: dict[str, Any]
) -> Job[Any]:
    if given.schedule is None:
        raise ConfigurationError("isRecurring needs a schedule, such as */10 * * * * *")
    if given.idempotency_key is not None:
        raise ConfigurationError(
            "a recurring job is identified by its name: give name instead of idempotencyKey"
        )
    name = given.name or f"{TASK_NAME}-{new_id()}"
    try:
        added = await harbor.schedules.aadd(
            name,
            TASK_NAME,
            payload,
            schedule=given.schedule,
            timezone=given.timezone,
            replace=False,
            **options,
        )
    except JobConflict as taken:
        return await harbor.jobs.aget(taken.job_id)  # unchanged: the response is 200
    return Job((await harbor.jobs.aget(added.id)).record, harbor, existed=False)


def refuse_closed(harbor: Harbor, task: str, payload: Mapping[str, Any]) -> None:
    """Refuse a URL that spells out an address that a worker would refuse. The worker looks names up itself.

    An application's own task of this name may take any URL.
    """
    url = payload.get("url")
    if task != TASK_NAME or TASK_NAME in harbor.tasks or not isinstance(url, str):
        return
    target = parse_url(url)
    try:
        address = ipaddress.ip_address(target.host)
    except ValueError:
        return
    why = refusal(target.host, address, target.port, harbor.http_allow)
    if why is not None:
        raise ConfigurationError(f"{why}, and closed to HTTP jobs; --http-allow opens it")
