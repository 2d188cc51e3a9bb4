"""What new code would meet in the store: jobs that it cannot take, schedules that change, jobs that run for long."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from msgspec import Struct

from taskharbor.client.schedules import _declared_job, _difference
from taskharbor.client.stats import Times
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.codec import agreeing, counted, decode_payload
from taskharbor.drivers.capabilities import Rollups
from taskharbor.drivers.contract.rollups import Figures, Period
from taskharbor.errors import PayloadError, SchemaError
from taskharbor.records import DEFAULT_QUEUE, Delivery, JobFilter, JobRecord, State
from taskharbor.rules.lifecycle import TERMINAL
from taskharbor.rules.rollups import DAY, added
from taskharbor.schedule import parse

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.client.task import Task

SAMPLE = 10_000  # jobs of each state that are looked at, unless the caller says
PAGE = 1_000
SHAPE_DEPTH = 4
FINDINGS_MAX = 100  # of unknown tasks, and of payloads that do not fit
HISTORY = 7 * DAY  # of the durations of a task
UNFINISHED = (State.RUNNING, State.READY, State.SCHEDULED, State.WAITING)

Topic = Literal["schema", "queues", "jobs", "schedules", "running"]


class Finding(Struct, frozen=True):
    """One thing that a deployment would meet. A problem is to be solved first; a notice is to be known."""

    topic: Topic
    severity: Literal["problem", "notice"]
    subject: str  # the task, schedule or queue
    detail: str
    jobs: int = 0  # that it concerns, among those that were looked at


class DeploymentReport(Struct, frozen=True):
    findings: tuple[Finding, ...]
    examined: int  # jobs that were looked at
    unfinished: int  # jobs that there are

    @property
    def problems(self) -> int:
        return sum(finding.severity == "problem" for finding in self.findings)


async def check_deployment(
    harbor: Harbor, *, grace: float, sample: int = SAMPLE, queues: Sequence[str] | None = None
) -> DeploymentReport:
    """Compare the code of this harbor with what its store holds. Nothing is changed.

    `grace` is how many seconds the present workers give running jobs when they stop. `sample` bounds the jobs of each
    state that are looked at, the newest first. `queues` are those that the application serves; None means all.
    """
    harbor._import_included()
    findings, fits = await _schema(harbor)
    if not fits:
        return DeploymentReport(tuple(findings), 0, 0)
    findings += await _queues(harbor, queues or ())
    jobs = _JobCheck(harbor)
    for state in UNFINISHED:
        async for record in _jobs(harbor, state, sample, queues):
            jobs.look_at(record)
    findings += jobs.findings()
    findings += await _schedules(harbor)
    findings += await _running(harbor, jobs.running, grace)
    counts = await harbor.driver.counts()
    return DeploymentReport(tuple(findings), jobs.examined, sum(counts[state] for state in UNFINISHED))


# -- the schema --


async def _schema(harbor: Harbor) -> tuple[list[Finding], bool]:
    """Return what is to be said of the schema, and whether the rest can be looked at without changing it."""
    from taskharbor.drivers.sqlite import SQLiteDriver

    if isinstance(harbor.driver, SQLiteDriver):
        return _schema_of_file(harbor.driver.path)
    try:
        await harbor.driver.open()
    except SchemaError as error:
        return [Finding("schema", "problem", "schema", str(error))], False
    return [], True


def _schema_of_file(path: str) -> tuple[list[Finding], bool]:
    """Read the version without the driver, which would bring an older schema up to date."""
    from taskharbor.drivers.sqlite import schema

    with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as connection:
        try:
            version = schema.version_of(connection)
        except SchemaError as error:
            return [Finding("schema", "problem", "schema", str(error))], False
    if version is None or version.number == 0:
        detail = "the file has no tables of TaskHarbor yet: run `taskharbor migrate`"
        return [Finding("schema", "problem", "schema", detail)], False
    latest = schema.latest_version()
    if schema.is_served(version):
        return [], True
    if schema.is_unreleased(version.number) or version.number > latest:
        detail = f"the store has schema version {version.number}, and the new code works with {latest}"
        return [Finding("schema", "problem", "schema", detail)], False
    goes_on = version.number >= schema.SERVES
    detail = (
        f"the first process of the new code brings the schema from version {version.number} to {latest}"
        + (
            "; the present workers go on"
            if goes_on
            else ", which the present workers cannot use: stop them first"
        )
    )
    return [Finding("schema", "notice" if goes_on else "problem", "schema", detail)], False


# -- queues --


async def _queues(harbor: Harbor, queues: Sequence[str]) -> list[Finding]:
    """Find names that neither the store nor the code knows: a check of nothing is no check.

    A queue that is empty at present is fine, as long as a task names it or a job of it is kept.
    """
    declared = {task._options.get("queue", DEFAULT_QUEUE) for task in harbor.tasks.values()}
    unknown: list[Finding] = []
    for queue in dict.fromkeys(queues):
        if queue in declared or (await harbor.driver.list(JobFilter(queue=queue), limit=1)).jobs:
            continue
        detail = "the store has no job in this queue, and no task of the new code names it: check the name"
        unknown.append(Finding("queues", "problem", queue, detail))
    return unknown


# -- jobs --


async def _jobs(
    harbor: Harbor, state: State, sample: int, queues: Sequence[str] | None
) -> AsyncIterator[JobRecord]:
    """Give the newest jobs of this state, of each queue, up to the sample."""
    for queue in queues or (None,):
        left, cursor = sample, None
        while left > 0:
            where = JobFilter(state=state, queue=queue)
            page = await harbor.driver.list(where, cursor=cursor, limit=min(left, PAGE))
            for record in page.jobs:
                yield record
            left, cursor = left - len(page.jobs), page.next_cursor
            if cursor is None:
                break


class _JobCheck:
    """Decodes the payloads of jobs as a worker would, and counts those that do not fit by task and shape."""

    def __init__(self, harbor: Harbor) -> None:
        self._harbor = harbor
        self.examined = 0
        self.running: dict[str, list[JobRecord]] = {}
        self._unknown: Counter[str] = Counter()
        self._unfit: Counter[tuple[str, str]] = Counter()  # by task and shape of the payload
        self._problems: dict[tuple[str, str], str] = {}  # the first of each of these

    def look_at(self, record: JobRecord) -> None:
        self.examined += 1
        if record.state is State.RUNNING:
            self.running.setdefault(record.task, []).append(record)
        task = self._harbor._known(record.task)
        if task is None:
            self._unknown[record.task] += 1
            return
        text = self._harbor.sealing.shown(record.payload)
        try:
            self._validate(task, record)
        except PayloadError as error:
            group = (record.task, _shape_of(text))
            self._unfit[group] += 1
            self._problems.setdefault(group, str(error))

    def _validate(self, task: Task[Any, Any, Any, Any], record: JobRecord) -> None:
        text = self._harbor.sealing.open(record.payload)
        if record.options.takes is None:
            task.validate(text)
        else:  # a worker fills the parameter in, with results of other jobs
            task.plan.check_without(text, record.options.takes.parameter)

    def findings(self) -> list[Finding]:
        unknown = [
            Finding(
                "jobs",
                "problem",
                task,
                "the new code has no task of this name; keep it, or give its successor the name as an alias",
                jobs,
            )
            for task, jobs in self._unknown.most_common(FINDINGS_MAX)
        ]
        unfit = [
            Finding(
                "jobs",
                "problem",
                task,
                f"{self._problems[task, shape]}; give new parameters defaults, and renamed ones parameter_aliases",
                jobs,
            )
            for (task, shape), jobs in self._unfit.most_common(FINDINGS_MAX)
        ]
        return unknown + unfit


def _shape_of(payload: str) -> str:
    """Return the names and types in a payload."""
    try:
        return _shape(decode_payload(payload))
    except PayloadError:
        return "unreadable"


def _shape(value: Any, depth: int = SHAPE_DEPTH) -> str:
    if isinstance(value, dict) and depth:
        return "{" + ",".join(f"{key}:{_shape(each, depth - 1)}" for key, each in sorted(value.items())) + "}"
    if isinstance(value, list) and depth:
        return "[" + ",".join(sorted({_shape(each, depth - 1) for each in value})) + "]"
    return type(value).__name__


# -- schedules --


async def _schedules(harbor: Harbor) -> list[Finding]:
    now = await harbor.driver.now()
    findings: list[Finding] = []
    for name, task in sorted(harbor.schedules._declared().items()):
        job = _declared_job(task, now)
        [record] = await harbor.driver.get([job.id])
        assert job.options.recurrence is not None, "only such a task is declared with a schedule"
        wanted = _when(job.options.recurrence)
        if record is None or record.state in TERMINAL:
            detail = f"new: {wanted}, for the first time {_next(job.options.recurrence, now)}"
        elif _difference(record, harbor.schedules._as_stored(record, job), now) is not None:
            old = record.options.recurrence
            before = "" if old is None else _when(old)
            detail = (
                f"changes from {before} to {wanted}, next {_next(job.options.recurrence, now)}"
                if before != wanted
                else "changes its options, not its times"
            )
        else:
            continue
        findings.append(Finding("schedules", "notice", name, detail))
    return findings + [
        Finding(
            "schedules",
            "notice",
            each.name,
            "the new code no longer declares it, and it goes on: pause or delete it with `taskharbor schedule`",
        )
        for each in await harbor.schedules.alist(harbor.application)
        if each.orphaned
    ]


def _when(recurrence: Any) -> str:
    return f"{recurrence.schedule!r} ({recurrence.timezone})"


def _next(recurrence: Any, now: int) -> str:
    from taskharbor.clock import from_micros

    following = parse(recurrence.schedule, recurrence.timezone).next_micros(now)
    return from_micros(following).isoformat(timespec="minutes")


# -- running jobs --


async def _running(harbor: Harbor, running: dict[str, list[JobRecord]], grace: float) -> list[Finding]:
    """Find the jobs that would not end within the grace, if they take as long as 95 of 100 did lately."""
    store = Rollups.offered_by(harbor.driver)
    if not running or store is None:
        return []
    now = await harbor.driver.now()
    since = {job: at for lease in await harbor.driver.leases() for job, at in lease.running.items()}
    findings: list[Finding] = []
    for task, records in sorted(running.items()):
        figures = Figures()
        for row in await store.rollups(now - HISTORY, now, Period.HOUR, task=task):
            figures = added(figures, row.figures)
        p95 = Times.of(figures.duration).p95
        if p95 is None:
            continue
        late = [each for each in records if p95 - (now - since.get(each.id, now)) / MICROS_PER_SECOND > grace]
        once = [each for each in late if _is_once(harbor, each)]
        for jobs, severity, end in (
            (once, "problem", "dies (interrupted)"),
            ([each for each in late if each not in once], "notice", "is interrupted and runs again"),
        ):
            if jobs:
                detail = (
                    f"{counted(len(jobs), 'running job')} {agreeing(len(jobs), 'takes', 'take')} up to {p95:.1f} s "
                    f"(95 of 100 did lately), longer than the grace of {grace:g} s: each {end}"
                )
                findings.append(Finding("running", severity, task, detail, len(jobs)))  # type: ignore[arg-type]
    return findings


def _is_once(harbor: Harbor, record: JobRecord) -> bool:
    task = harbor._known(record.task)
    declared = None if task is None else task.declared_delivery
    return (record.delivery or declared) is Delivery.AT_MOST_ONCE
