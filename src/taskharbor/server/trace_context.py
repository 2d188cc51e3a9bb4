"""The trace context of a request: a job that is enqueued over REST belongs to the trace of its caller."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from taskharbor.records import NewJob
from taskharbor.rules.meta import VALUE_MAX, read_meta, with_inherited

if TYPE_CHECKING:
    from starlette.datastructures import Headers

    from taskharbor.client.handle import Job
    from taskharbor.client.harbor import Harbor

# By W3C Trace Context: version 00 has four parts, a later version may have more. No id is all zeros.
_IDS = "(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_TRACEPARENT = re.compile(f"00-{_IDS}|(?!00|ff)[0-9a-f]{{2}}-{_IDS}(?:-[!-~]*)?")
_TRACESTATE = re.compile(r"[ -~]+")


async def store_traced(harbor: Harbor, job: NewJob, headers: Headers) -> Job[Any]:
    """Store a job with the trace context of the request, unless the job was given one of its own.

    With tracing, the request's context is the parent of the `send` span, whose context the job carries. Without, the
    job carries the request's context as it came.
    """
    context = trace_context_of(headers)
    if not context or "traceparent" in read_meta(job.meta):
        [stored] = await harbor._store([job])
    elif harbor.tracing is not None and harbor.tracing.is_on:
        with harbor.tracing.within(context):
            [stored] = await harbor._store([job])
    else:
        meta = with_inherited(job.meta, msgspec.json.encode(context).decode())
        [stored] = await harbor._store([msgspec.structs.replace(job, meta=meta)])
    return stored


def trace_context_of(headers: Headers) -> dict[str, str]:
    """Return the `traceparent` of a request and its `tracestate`, if any; nothing if the `traceparent` is not valid."""
    parents = headers.getlist("traceparent")
    if len(parents) != 1 or len(parents[0]) > VALUE_MAX or not _TRACEPARENT.fullmatch(parents[0]):
        return {}
    state = ",".join(headers.getlist("tracestate"))
    if len(state) > VALUE_MAX or not _TRACESTATE.fullmatch(state):
        return {"traceparent": parents[0]}
    return {"traceparent": parents[0], "tracestate": state}
