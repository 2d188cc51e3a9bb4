"""`assert_enqueued` and its relatives: what a test says about the jobs in the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from taskharbor.client.handle import Job
from taskharbor.client.task import Enqueueable
from taskharbor.codec import decode_payload, encode_payload, shorten
from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.records import JobFilter
from taskharbor.sync import run_inline, run_on_loop_thread
from taskharbor.testing.checks import check_task
from taskharbor.testing.stage import current_stage

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

SHOWN_MAX = 5  # jobs that a failure shows
JOBS_MAX = 100_000

AnyTask = Enqueueable[Any, Any]


def enqueued(task: AnyTask | str | None = None, /, **payload: Any) -> list[Job[Any]]:
    """Return the jobs of this task that the store keeps, in any state, oldest first.

    Given arguments must be those of the job; others may be anything. A task may be given by its name, and None means
    every task.
    """
    return _enqueued(task, payload, "enqueued()")


def _enqueued(task: AnyTask | str | None, payload: dict[str, Any], caller: str) -> list[Job[Any]]:
    harbor, name = _named(task, caller)
    wanted = _wanted(harbor, name, payload)
    return [job for job in _all(harbor) if _fits(job, name) and _misses(job, wanted) == 0]


def assert_enqueued(task: AnyTask | str, /, **payload: Any) -> Job[Any]:
    """Fail unless a job of this task with these arguments is in the store; return the newest one.

    The failure shows what is there instead, the nearest first.
    """
    __tracebackhide__ = True
    found = _enqueued(task, payload, "assert_enqueued()")
    if found:
        return found[-1]
    harbor, name = _named(task, "assert_enqueued()")
    raise AssertionError(_missing(harbor, name or "", payload))


def assert_not_enqueued(task: AnyTask | str | None = None, /, **payload: Any) -> None:
    """Fail if a job of this task with these arguments is in the store; without a task, if any job is.

    A name that is no task of the harbor is refused, since a slip in it would always pass.
    """
    __tracebackhide__ = True
    found = _enqueued(task, payload, "assert_not_enqueued()")
    if not found and isinstance(task, str):
        _refuse_unknown(task)
    if found:
        shown = [f"  {_shown(job)}" for job in found[:SHOWN_MAX]]
        more = [f"  and {len(found) - SHOWN_MAX} more"] if len(found) > SHOWN_MAX else []
        wanted = (
            "nothing"
            if task is None
            else f"no {_call(_named(task, 'assert_not_enqueued()')[1] or '', payload)}"
        )
        raise AssertionError(
            "\n".join([f"{wanted} should have been enqueued, but the store has:", *shown, *more])
        )


def _refuse_unknown(name: str) -> None:
    harbor, _ = _named(name, "assert_not_enqueued()")
    if harbor._known(name) is None:
        names = sorted(harbor.tasks)
        known = ", ".join(names[:SHOWN_MAX] + ["…"] * (len(names) > SHOWN_MAX)) or "none"
        raise ConfigurationError(
            f"the harbor has no task called {shorten(name)} (it has {known}), "
            "so this would pass whatever the code does; for a task of another application, "
            f"write: assert enqueued({shorten(name)}) == []"
        )


def _named(task: AnyTask | str | None, caller: str) -> tuple[Harbor, str | None]:
    """Return the harbor whose store is looked at, and the name of the task."""
    if isinstance(task, Enqueueable):
        return task._task.harbor, task._task.name
    if task is not None and not isinstance(task, str):
        check_task(task, caller)
    stage = current_stage()
    if stage is None:
        raise ConfigurationError(
            "which store is meant? give the task itself, not its name, or use the fixture `harbor`"
        )
    known = None if task is None else stage.harbor._known(task)
    return stage.harbor, task if known is None else known.name


def _all(harbor: Harbor) -> list[Job[Any]]:
    """Return every job, oldest first."""

    async def read() -> list[Job[Any]]:
        records: list[Any] = []
        cursor: str | None = None
        while len(records) < JOBS_MAX:
            page = await harbor.driver.list(JobFilter(), cursor=cursor, limit=1_000)
            records += page.jobs
            cursor = page.next_cursor
            if cursor is None:
                break
        return [Job(record, harbor) for record in reversed(records)]

    return (run_inline if harbor.driver.inline else run_on_loop_thread)(read())


def _wanted(harbor: Harbor, name: str | None, payload: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON keeps them, so that a date and its text are the same."""
    task = None if name is None else harbor._known(name)
    if task is None:
        return decode_payload(encode_payload(payload))
    try:
        return decode_payload(task.plan.encoded(task.plan.bind((), payload, partial=True), partial=True))
    except PayloadError as error:
        raise AssertionError(f"no job of {name} can have these arguments: {error}") from None


def _fits(job: Job[Any], name: str | None) -> bool:
    return name is None or job.task == name


def _misses(job: Job[Any], wanted: dict[str, Any]) -> int:
    """Return how many of the wanted arguments the job does not have."""
    return sum(1 for name, value in wanted.items() if job.payload.get(name, msgspec.UNSET) != value)


def _missing(harbor: Harbor, name: str, payload: dict[str, Any]) -> str:
    jobs = _all(harbor)
    wanted = _wanted(harbor, name, payload)
    lines = [f"{_call(name, payload)} was not enqueued"]
    if not jobs:
        return f"{lines[0]}; the store has no job at all"
    nearest = sorted(jobs, key=lambda job: (not _fits(job, name), _misses(job, wanted)))
    lines[0] += "; the store has instead, the nearest first:"
    for job in nearest[:SHOWN_MAX]:
        lines.append(f"  {_shown(job)}")
        if _fits(job, name):
            lines += _differences(job, wanted)
    if len(nearest) > SHOWN_MAX:
        lines.append(f"  and {len(nearest) - SHOWN_MAX} more")
    return "\n".join(lines)


def _differences(job: Job[Any], wanted: dict[str, Any]) -> list[str]:
    found = job.payload
    return [
        f"    {key}: wanted {shorten(value)}, found {shorten(found[key]) if key in found else 'none'}"
        for key, value in wanted.items()
        if found.get(key, msgspec.UNSET) != value
    ]


def _call(name: str, payload: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={shorten(value)}' for key, value in payload.items())})"


def _shown(job: Job[Any]) -> str:
    return f"{_call(job.task, job.payload)} in queue {job.queue}, {job.state}"
