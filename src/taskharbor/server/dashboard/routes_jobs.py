"""`/jobs`: find jobs, look through them, and act on those that are ticked or on all that match."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from shlex import quote
from typing import Any, Literal
from urllib.parse import urlencode

import msgspec
from msgspec import Struct
from starlette.responses import JSONResponse, Response

from taskharbor.codec import counted
from taskharbor.server.dashboard.pages import Nav, Pages
from taskharbor.server.dashboard.routes_overview import DEPTHS_WAIT
from taskharbor.server.dashboard.search_box import (
    Searched,
    has_bare_words,
    read_search,
    suggestions,
    write_search,
)
from taskharbor.server.dashboard.view import PAGE_HEADERS, View
from taskharbor.server.errors import ApiError, api_error
from taskharbor.server.routes import dlq, jobs, queues, tasks
from taskharbor.server.tokens import Role
from taskharbor.views.job_documents import JobDocument

pages = Pages()

PAGE_SIZE = 50
NAMES_SECONDS = 5.0  # how old the known tasks and queues may be
NAMES_STALE_SECONDS = (
    3_600.0  # and while they are read anew: their depths, which are not shown here, may take long
)
SELECTED_MAX = 200

# What can be done to jobs: the words for it, and whether it asks for dead ones.
VERBS = {
    "requeue": ("Requeue", "dead jobs run again"),
    "discard": ("Discard", "dead jobs become cancelled"),
    "cancel": ("Cancel", "unfinished jobs do not run, running ones are asked to stop"),
    "delete": ("Delete", "jobs that are not running disappear with their history"),
}
Verb = Literal["requeue", "discard", "cancel", "delete"]
_CAMEL = {
    "correlation_id": "correlationId",
    "enqueued_after": "enqueuedAfter",
    "enqueued_before": "enqueuedBefore",
    "finished_after": "finishedAfter",
    "finished_before": "finishedBefore",
}


class JobsQuery(Struct, forbid_unknown_fields=True):
    """What to look for: as it is typed, or by name, as links do."""

    q: str = ""
    cursor: str | None = None
    state: str | None = None
    queue: str | None = None
    task: str | None = None
    tag: str | None = None
    workflow: str | None = None
    correlation: str | None = None
    group: str | None = None
    reason: str | None = None
    error: str | None = None


class BulkQuery(Struct, forbid_unknown_fields=True):
    """What to do to all that match."""

    verb: Verb
    q: str = ""


class BulkForm(Struct, forbid_unknown_fields=True):
    verb: Verb
    q: str = ""


class SelectedForm(Struct, forbid_unknown_fields=True):
    """The ticked jobs, what to do to them, and the search to go back to."""

    verb: Verb
    q: str = ""
    id: list[str] = []


@pages.page("/jobs", query=JobsQuery, nav=Nav("Jobs", key="b", order=15))
async def show_jobs(view: View) -> Response:
    """List the jobs that match, newest first."""
    searched = await _searched(view, _typed(view.query))
    typed = write_search(searched.where) if not searched.problems else view.query.q
    if list(searched.where) == ["ids"] and len(searched.where["ids"]) == 1 and not view.is_live:
        try:
            found = await view.ask(jobs.get_job, params={"id": searched.where["ids"][0]})
            return view.go(view.url("jobs", found.id))
        except Exception as error:
            if api_error(error).status >= 500:
                raise
    page: Any = None
    if not searched.problems:
        try:
            page = await _page(view, searched.where)
        except Exception as error:
            refusal = api_error(error)
            if refusal.status >= 500:
                raise
            searched.problems.append(refusal.message)
    return view.render(
        "jobs.html",
        status=200 if not searched.problems else 422,
        page=page,
        typed=typed,
        problems=searched.problems,
        where=searched.where,
        verbs=_verbs_for(page.items if page is not None else []),
        all_verbs=VERBS,
        curl=_curl(view, searched),
        cli=_cli(searched.where),
    )


@pages.page("/jobs/suggest", query=JobsQuery)
async def suggest(view: View) -> Response:
    """Complete what is typed into the search box."""
    known_tasks, known_queues = await _known(view, DEPTHS_WAIT)
    found = suggestions(view.query.q[:500], tasks=known_tasks, queues=known_queues)
    return JSONResponse(found, headers=PAGE_HEADERS)


@pages.page("/jobs/bulk", Role.ADMIN, query=BulkQuery)
async def ask_bulk(view: View) -> Response:
    """Say how many jobs match before anything is done to them."""
    searched = await _searched(view, view.query.q)
    where = _bulk_where(searched, view.query.verb)
    handle = dlq.count_dead_jobs if view.query.verb in ("requeue", "discard") else jobs.count_jobs
    count = await view.ask(handle, query=_as_query(where))
    return view.render(
        "bulk.html",
        verb=view.query.verb,
        words=VERBS[view.query.verb],
        typed=write_search(searched.where),
        count=f"{count.count:,}{'+' if count.more else ''}",
        is_none=count.count == 0 and not count.more,
    )


@pages.action("/jobs/bulk", Role.ADMIN, form=BulkForm)
async def start_bulk(view: View) -> Response:
    """Enqueue the job that acts on all that match, and show it."""
    searched = await _searched(view, view.form.q)
    where = _bulk_where(searched, view.form.verb)
    # An empty search means all jobs here: the page before it has said how many.
    body = {"verb": view.form.verb, "everything": not where, **_as_body(where)}
    job = await view.ask(jobs.start_bulk, body=body)
    return view.go(view.url("jobs", job.id), "This job does it. Cancel it to stop.")


@pages.action("/jobs/selected", Role.WRITE, form=SelectedForm)
async def act_on_selected(view: View) -> Response:
    """Act on the ticked jobs one after the other; one that is refused does not keep the others from it."""
    ids = view.form.id
    if not ids:
        raise ApiError(422, "unprocessable", "tick the jobs first")
    if len(ids) > SELECTED_MAX:
        raise ApiError(
            422, "unprocessable", f"at most {SELECTED_MAX} jobs can be ticked; act on all that match"
        )
    done, refused = 0, []
    handles = {
        "requeue": jobs.retry_job,
        "discard": dlq.discard_dead_job,
        "cancel": jobs.cancel_job,
        "delete": jobs.delete_job,
    }
    for job_id in ids:
        try:
            await view.ask(handles[view.form.verb], params={"id": job_id})
            done += 1
        except Exception as error:
            refusal = api_error(error)
            if refusal.status not in (404, 409, 422):
                raise
            refused.append(refusal.message)
    words = f"{VERBS[view.form.verb][0]}: {counted(done, 'job')}."
    if refused:
        words += f" {counted(len(refused), 'job')} refused: {refused[0]}"
    return view.done(words, to=view.url("jobs", q=view.form.q or None))


# -- searching ---------------------------------------------------------------------------------------


def _typed(query: JobsQuery) -> str:
    """Return the search as it would be typed."""
    named = {
        "state": query.state,
        "queue": query.queue,
        "task": query.task,
        "tag": query.tag,
        "workflow": query.workflow,
        "correlation_id": query.correlation,
        "fingerprint": query.group,
        "reason": query.reason,
        "error": query.error,
    }
    words = write_search({name: value for name, value in named.items() if value})
    return f"{query.q} {words}".strip()


async def _searched(view: View, typed: str) -> Searched:
    known_tasks, known_queues = await _known(view) if has_bare_words(typed) else ([], [])
    return read_search(typed, now=datetime.now(UTC), tasks=known_tasks, queues=known_queues)


async def _known(view: View, wait: float | None = None) -> tuple[list[str], list[str]]:
    """Return the names of tasks and queues, for words without a name before them and for completion.

    With `wait`, there are no queues if the store needs longer than these seconds to count them.
    """
    found = await view.ask(tasks.list_tasks, seconds=NAMES_SECONDS, stale=NAMES_STALE_SECONDS)
    listed = await view.ask(queues.list_queues, seconds=NAMES_SECONDS, stale=NAMES_STALE_SECONDS, wait=wait)
    names = {task.name for task in found.items if task.kind == "task"} | set(view.harbor.tasks)
    return sorted(names), [] if listed is None else sorted(queue.name for queue in listed.items)


async def _page(view: View, where: Mapping[str, Any]) -> Any:
    if "ids" in where:
        others = {name: value for name, value in where.items() if name != "ids"}
        found = [await view.ask(jobs.get_job, params={"id": job_id}) for job_id in where["ids"][:PAGE_SIZE]]
        if others:
            raise ApiError(422, "unprocessable", "search by id alone, or leave the id out")
        return _Found(found)
    query = {**_as_query(where), "limit": PAGE_SIZE}
    if view.query.cursor is not None:
        query["cursor"] = view.query.cursor
    return await view.ask(jobs.list_jobs, query=query)


class _Found(Struct):
    """Jobs that were named by their ids, as a page."""

    items: list[JobDocument]
    next_cursor: str | None = None
    examined: int = 0
    reached: datetime | None = None


def _as_query(where: Mapping[str, Any]) -> dict[str, Any]:
    """Return a filter as the query of REST."""
    given = _as_body(where)
    if "payload" in given:
        given["payload"] = msgspec.json.encode(given["payload"]).decode()
    return given


def _as_body(where: Mapping[str, Any]) -> dict[str, Any]:
    return {
        _CAMEL.get(name, name): value.isoformat() if isinstance(value, datetime) else value
        for name, value in where.items()
    }


def _bulk_where(searched: Searched, verb: str) -> dict[str, Any]:
    """Return the filter of a bulk action, or refuse one that was not understood: it would match too much."""
    if searched.problems:
        raise ApiError(422, "unprocessable", searched.problems[0])
    where = dict(searched.where)
    if "ids" in where:
        raise ApiError(422, "unprocessable", "act on jobs that you name by their ids from the list")
    if verb in ("requeue", "discard") and where.pop("state", "dead") != "dead":
        raise ApiError(
            422, "unprocessable", f"only dead jobs can be {verb.rstrip('e')}ed; search for state:dead"
        )
    return where


def _verbs_for(items: list[JobDocument]) -> list[str]:
    """Return what can be done to at least one of these jobs."""
    states = {str(job.state) for job in items}
    verbs = []
    if states & {"dead", "cancelled"}:
        verbs.append("requeue")
    if "dead" in states:
        verbs.append("discard")
    if states & {"waiting", "scheduled", "ready", "running"}:
        verbs.append("cancel")
    if states - {"running"}:
        verbs.append("delete")
    return verbs


# -- the same from a terminal ------------------------------------------------------------------------


def _cli(where: Mapping[str, Any]) -> str:
    words = ["taskharbor list"]
    for name, value in where.items():
        if name == "ids":
            return " ".join(["taskharbor inspect", *map(quote, value)])
        if name == "payload":
            words += [
                f"--payload {quote(f'{path}:={msgspec.json.encode(each).decode()}')}"
                for path, each in value.items()
            ]
        else:
            option = {"fingerprint": "group"}.get(name, name.replace("_", "-"))
            text = value.isoformat() if isinstance(value, datetime) else str(value)
            words.append(f"--{option} {quote(text)}")
    return " ".join(words)


def _curl(view: View, searched: Searched) -> str:
    query = _as_query({name: value for name, value in searched.where.items() if name != "ids"})
    address = view.absolute("api", "v1", "jobs") + (f"?{urlencode(query)}" if query else "")
    return f'curl -H "Authorization: Bearer $TOKEN" {quote(address)}'
