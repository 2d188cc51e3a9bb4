"""Why a job does not run, or does: one reason, a sentence for a person, and the facts behind it.

`explain` goes through `CHECKS` in their order and takes the first reason that holds. Everything here is pure: the facts
are read by `taskharbor.client.why`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from shlex import quote
from typing import Any

from taskharbor.clock import MICROS_PER_SECOND, from_micros
from taskharbor.codec import agreeing, counted
from taskharbor.drivers.base import WorkerRecord
from taskharbor.drivers.contract.reading import PRESENCE_LASTS
from taskharbor.drivers.contract.waits import WorkerLoad
from taskharbor.records import FAILURES, AttemptRecord, AttemptStatus, Delivery, JobRecord, Reason, State
from taskharbor.rules.policy import UNSETTLED_MAX, unrunnable_until
from taskharbor.rules.standing import PARKED_AT
from taskharbor.rules.why_facts import BEFORE_MAX, WAITS_MAX, Facts, Stop, Why, WhyCode, WhyFacts
from taskharbor.rules.why_words import ENDINGS, at, first_line, span

WAITS_NAMED = 3
# A worker extends its leases after each third of their time. One that missed a whole one of these is dead or cut off.
BEATS_MISSED = 2 / 3


Found = tuple[str, dict[str, Any]] | None  # the sentence and its facts, or None: the reason does not hold


def explain(facts: Facts) -> Why:
    """Return the first reason that holds."""
    for code, check in CHECKS.items():
        found = check(facts)
        if found is not None:
            sentence, about = found
            job = facts.job
            known = WhyFacts(
                at=from_micros(facts.now), state=job.state, queue=job.queue, task=job.task, **about
            )
            return Why(code, sentence, known)
    raise AssertionError(f"no reason holds for a job that is {facts.job.state}")


def _to_copy(facts: Facts, command: str, *words: str) -> str:
    """Return a command line to copy, which names the store of this job."""
    return " ".join(["taskharbor", command, *map(quote, words)]) + facts.store


# -- finished --------------------------------------------------------------------------------------


def _finished(facts: Facts) -> Found:
    job = facts.job
    if job.state not in (State.SUCCEEDED, State.DEAD, State.CANCELLED):
        return None
    when = at(facts, job.finished_at)
    about = {
        "reason": job.reason,
        "error": job.error,
        "attempts": job.attempts,
        "finished_at": _instant(job.finished_at),
    }
    if job.state is State.SUCCEEDED:
        return f"It succeeded at {when}, in attempt {job.number}", about
    ending = ENDINGS.get(str(job.reason), f"its reason is {job.reason}")
    if job.state is State.CANCELLED:
        todo = f"run it again with {_to_copy(facts, 'job retry', job.id)}"
        return f"It was cancelled at {when}: {ending}; {todo}", about
    if job.reason is Reason.EXHAUSTED:
        ending = f"it failed {counted(job.attempts, 'time')}, as often as it may"
    error = "" if job.error is None else f", the last error is {first_line(job.error)}"
    return (
        f"It has been dead since {when}: {ending}{error}; run it again with {_to_copy(facts, 'dlq requeue', job.id)}",
        about,
    )


# -- running ---------------------------------------------------------------------------------------


def _lease_expired(facts: Facts) -> Found:
    job = facts.job
    if job.state is not State.RUNNING or not job.lease_expired:
        return None
    collected = "a worker collects it within seconds"
    if facts.workers is not None and not facts.workers:
        collected = f"no worker is there to collect it{_by_records(facts, ())}: start one"
    return (
        (
            f"Its worker {job.worker} died or was cut off: the lease expired at {at(facts, job.lease_expires_at)}, and "
            f"{collected}; then {_after_the_loss(job)}"
        ),
        {"worker": job.worker, "until": _instant(job.lease_expires_at)},
    )


def _worker_gone(facts: Facts) -> Found:
    job = facts.job
    if job.state is not State.RUNNING or facts.workers is None or job.lease_expires_at is None:
        return None
    holder, lease = facts.holder, job.lease_expires_at
    if holder is None:
        sign = "has not signed on, as a worker does within a second, so it is most likely dead"
    elif holder.lease and facts.now - (lease - holder.lease) >= holder.lease * BEATS_MISSED:
        expected = at(facts, lease - holder.lease * 2 // 3)
        sign = f"is dead or cut off, since it should have extended its lease by {expected}"
    else:
        return None
    return (
        (
            f"Its worker {job.worker} {sign}{_by_records(facts, [holder] if holder else ())}: the lease expires at "
            f"{at(facts, lease)}, then {_after_the_loss(job)}"
        ),
        {"worker": job.worker, "until": _instant(lease), **_age(facts, [holder] if holder else ())},
    )


def _after_the_loss(job: JobRecord) -> str:
    if job.cancel_requested:
        return "it is cancelled, as was asked for"
    if job.delivery is Delivery.AT_MOST_ONCE:
        return "it is dead, reason lost, unless it is known not to have begun: it may run at most once"
    return "another worker may run it again"


def _cancel_requested(facts: Facts) -> Found:
    job = facts.job
    if job.state is not State.RUNNING or not job.cancel_requested:
        return None
    return (
        (
            f"It was asked to cancel and has not ended yet on worker {job.worker}{_since(facts)}: a handler that is "
            "async is interrupted within a second, any other has to look at ctx.stop_requested itself"
        ),
        {"worker": job.worker, "since": _instant(facts.begun_at)},
    )


def _running(facts: Facts) -> Found:
    job = facts.job
    if job.state is not State.RUNNING or facts.begun_at is None:
        return None
    return (
        f"It is running on worker {job.worker}{_since(facts)}",
        {"worker": job.worker, "since": _instant(facts.begun_at), "until": None},
    )


def _claimed(facts: Facts) -> Found:
    job = facts.job
    if job.state is not State.RUNNING:
        return None
    holder = facts.holder
    beat = (
        "each heartbeat"
        if holder is None or not holder.lease
        else f"each heartbeat, every {span(holder.lease // 3)}"
    )
    return (
        (
            f"Worker {job.worker} has claimed it and is about to begin it, or has begun it: workers report what "
            f"runs with {beat}"
        ),
        {"worker": job.worker, **_age(facts, [holder] if holder else ())},
    )


def _since(facts: Facts) -> str:
    return "" if facts.begun_at is None else f" since {at(facts, facts.begun_at)}"


# -- waiting and scheduled -------------------------------------------------------------------------


def _schedule_paused(facts: Facts) -> Found:
    recurrence = facts.job.options.recurrence
    if facts.job.state is not State.SCHEDULED or recurrence is None or facts.job.run_at < PARKED_AT:
        return None
    name = recurrence.name
    application = [] if recurrence.application == "default" else ["--application", recurrence.application]
    return (
        f"Its schedule {name} is paused: resume it with {_to_copy(facts, 'schedule resume', name, *application)}",
        {"schedule": name},
    )


def _waits_for_jobs(facts: Facts) -> Found:
    if facts.job.state is not State.WAITING:
        return None
    count = facts.waits_for_count
    about = {"waits_for": list(facts.waits_for), "waits_for_count": count}
    if not count:
        return "It waited for jobs that have all succeeded: a worker releases it within seconds", about
    how_many = f"more than {WAITS_MAX:,} jobs" if count > WAITS_MAX else counted(count, "job")
    named = facts.waits_for[:WAITS_NAMED]
    names = ", ".join(f"{each.id} ({each.task or 'deleted'}, {each.state or 'gone'})" for each in named)
    rest = count - len(named)
    more = "" if not rest else " and others" if count > WAITS_MAX else f" and {rest:,} more"
    if facts.is_in_backlog:
        return f"It waits for the message before it of its key, in the order of the log: job {names}", about
    stuck = next((each for each in named if each.state in (State.DEAD, State.CANCELLED)), None)
    todo = (
        ""
        if stuck is None
        else f"; one is {stuck.state}: run it again with {_to_copy(facts, 'job retry', stuck.id)}"
    )
    return f"It waits for {how_many}: {names}{more}{todo}", about


def _retry(facts: Facts) -> Found:
    latest = _latest(facts)
    if latest is None or latest.status not in FAILURES:
        return None
    job, limit = facts.job, facts.max_attempts
    which = f"{job.attempts}" if not limit else f"{job.attempts} of {max(limit - 1, job.attempts)}"
    return (
        (
            f"Retry {which} backs off until {at(facts, job.run_at)}, after this error: {first_line(latest.error)}; "
            f"try it now with {_to_copy(facts, 'job run-now', job.id)}"
        ),
        {
            "attempts": job.attempts,
            "max_attempts": limit,
            "until": _instant(job.run_at),
            "error": latest.error,
        },
    )


def _asleep(facts: Facts) -> Found:
    latest = _latest(facts)
    if latest is None or latest.status is not AttemptStatus.SLEPT:
        return None
    _, _, step = (latest.detail or "").partition("asleep: ")
    where = f", in its step {step}" if step else ""
    return (
        f"It is asleep until {at(facts, facts.job.run_at)}{where}: then its handler goes on with what its steps stored",
        {"until": _instant(facts.job.run_at)},
    )


def _put_back(facts: Facts) -> Found:
    latest = _latest(facts)
    if latest is None or latest.status is not AttemptStatus.RELEASED:
        return None
    job = facts.job
    until = at(facts, job.run_at)
    about: dict[str, Any] = {"until": _instant(job.run_at), "error": latest.error}
    if latest.detail == Reason.UNSETTLEABLE:
        times = sum(row.detail == Reason.UNSETTLEABLE for row in facts.history)
        return (
            (
                f"A bug in TaskHarbor kept its latest attempt from being settled, so it is put back until {until}, and "
                f"dead with the {UNSETTLED_MAX}th time (this was number {times}): {first_line(latest.error)}"
            ),
            {**about, "reason": Reason.UNSETTLEABLE},
        )
    dead_at = unrunnable_until(facts.history)
    if dead_at is None or latest.detail not in (Reason.UNKNOWN_TASK, Reason.INVALID_PAYLOAD):
        return None
    about |= {"reason": Reason(str(latest.detail)), "dead_at": _instant(dead_at)}
    if latest.detail == Reason.UNKNOWN_TASK:
        what, todo = (
            f"Worker {latest.worker} does not know its task {job.task}",
            "start a worker that knows it",
        )
    else:
        what, todo = (
            f"Its payload does not fit the handler of {job.task} ({first_line(latest.error)})",
            "change the payload with taskharbor job update, or deploy a handler that takes it",
        )
    return (
        f"{what}, so it is put back until {until}, and dead if that is still so after {at(facts, dead_at)}: {todo}",
        about,
    )


def _not_due(facts: Facts) -> Found:
    job = facts.job
    if job.state is not State.SCHEDULED:
        return None
    name = None if job.options.recurrence is None else job.options.recurrence.name
    subject = "It" if name is None else f"The next run of its schedule {name}"
    return (
        f"{subject} is not due until {at(facts, job.run_at)}",
        {"until": _instant(job.run_at), "schedule": name},
    )


def _latest(facts: Facts) -> AttemptRecord | None:
    """The attempt that put a scheduled job where it is; None if an operator or a producer did."""
    job = facts.job
    if job.state is not State.SCHEDULED or not facts.history:
        return None
    latest = facts.history[0]
    # An attempt of an earlier run, or of an earlier occurrence, says nothing about this one.
    is_of_this_run = latest.number == job.number and latest.status is not AttemptStatus.SUCCEEDED
    failed = latest.status in FAILURES
    return latest if is_of_this_run and (not failed or job.attempts > 0) else None


# -- ready -----------------------------------------------------------------------------------------


def _queue_paused(facts: Facts) -> Found:
    pause = facts.pause
    if pause is None:
        return None
    return (
        (
            f"Its queue {pause.name} is paused{_by_whom(facts, pause)}: resume it with "
            f"{_to_copy(facts, 'queue resume', pause.name)}"
        ),
        {"by": pause.by, "since": _instant(pause.since)},
    )


def _held(facts: Facts) -> Found:
    hold = facts.hold
    if hold is None:
        return None
    what, option = ("tag", ["--tag"]) if hold.is_tag else ("task", [])
    return (
        (
            f"Its {what} {hold.name} is held{_by_whom(facts, hold)}: release it with "
            f"{_to_copy(facts, 'task release', hold.name, *option)}"
        ),
        {f"held_{what}": hold.name, "by": hold.by, "since": _instant(hold.since)},
    )


def _by_whom(facts: Facts, stop: Stop) -> str:
    by = "" if stop.by is None else f" by {stop.by}"
    since = "" if stop.since is None else f" since {at(facts, stop.since)}"
    return f",{by}{since}" if by or since else ""


def _no_worker(facts: Facts) -> Found:
    if facts.workers is None or facts.serving:
        return None
    queue = facts.job.queue
    others = len(facts.workers)
    # Without the application a worker would know only the built-in tasks.
    application = facts.store if facts.store.startswith(" -A ") else " -A …"
    but = f", and {counted(others, 'worker')} {agreeing(others, 'serves', 'serve')} others" if others else ""
    return (
        (
            f"No worker serves the queue {queue}{but}{_by_records(facts, facts.workers)}: start one with "
            f"taskharbor worker{application} --queues {quote(queue)}"
        ),
        {"workers": 0, **_age(facts, facts.workers)},
    )


def _unknown_task(facts: Facts) -> Found:
    serving = facts.serving
    if not serving or any(_knows(each, facts.job.task) for each in serving):
        return None
    return (
        (
            f"{_workers(len(serving))} the queue {facts.job.queue}, but none of them knows the task {facts.job.task}"
            f"{_by_records(facts, serving)}: start one whose application declares it"
        ),
        {"workers": len(serving), **_age(facts, serving)},
    )


def _suspect(facts: Facts) -> Found:
    if not facts.job.suspect:
        return None
    before = "" if not facts.before else f", after {counted(facts.before, 'suspect')} before it"
    return (
        (
            "It is a suspect: it was lost or cut off together with other jobs, twice in a row, so it waits for a "
            f"worker that runs it alone{before}"
        ),
        {"before": facts.before},
    )


def slots_busy(facts: Facts) -> Found:
    line = _line(facts)
    if not line["workers"]:
        return None
    loads = [(each.slots, facts.loads.get(each.name, WorkerLoad())) for each in _able(facts)]
    all_running = all(load.running >= slots for slots, load in loads)
    all_held = all(load.held >= slots for slots, load in loads)
    if not all_running and not (all_held and facts.before == 0):
        return None
    place = "it is the next one" if facts.before == 0 else f"{_before(facts)} before it"
    return (
        (
            f"All {counted(line['slots'], 'slot')} of {_those(line['workers'])} it are busy"
            f"{_by_records(facts, _able(facts))}, and {place}: wait, or start another worker"
        ),
        line,
    )


def _in_line(facts: Facts) -> Found:
    line = _line(facts)
    records = "" if facts.workers is None else _by_records(facts, _able(facts))
    if facts.before is None:
        return f"It is ready, and a worker takes it in its turn{records}", line
    if facts.before == 0:
        return f"No job stands before it: a worker takes it as soon as it looks{records}", line
    if not facts.per_second:
        return f"{_before(facts, start=True)} before it: a worker takes it in its turn{records}", line
    seconds = facts.before / facts.per_second
    least = "more than" if facts.before > BEFORE_MAX else "about"
    line |= {"per_second": facts.per_second, "seconds": seconds}
    return (
        (
            f"{_before(facts, start=True)} before it, at the present rate of {facts.per_second:.3g} a second {least} "
            f"{span(round(seconds * MICROS_PER_SECOND))}{records}"
        ),
        line,
    )


def _line(facts: Facts) -> dict[str, Any]:
    """The facts of a job in the line."""
    able = _able(facts)
    loads = [facts.loads.get(each.name, WorkerLoad()) for each in able]
    return {
        "workers": None if facts.workers is None else len(able),
        "slots": sum(each.slots for each in able),
        "claimed": sum(load.held for load in loads),
        "running": sum(load.running for load in loads),
        "before": facts.before,
        **_age(facts, able),
    }


def _before(facts: Facts, *, start: bool = False) -> str:
    count = facts.before
    if count is None:
        return f"{'O' if start else 'o'}ther jobs may stand"
    if count > BEFORE_MAX:
        return f"{'M' if start else 'm'}ore than {BEFORE_MAX:,} jobs stand"
    return f"{counted(count, 'job')} {agreeing(count, 'stands', 'stand')}"


# -- workers ---------------------------------------------------------------------------------------


def _knows(worker: WorkerRecord, task: str) -> bool:
    return worker.tasks is None or task in worker.tasks


def _able(facts: Facts) -> list[WorkerRecord]:
    """The workers that serve its queue and know its task."""
    return [each for each in facts.serving if _knows(each, facts.job.task)]


def _workers(count: int) -> str:
    return f"{counted(count, 'worker')} {agreeing(count, 'serves', 'serve')}"


def _those(count: int) -> str:
    return f"the {counted(count, 'worker')} that serve" if count > 1 else "the worker that serves"


def _by_records(facts: Facts, workers: Sequence[WorkerRecord]) -> str:
    """Say how old the records may be that a statement rests on."""
    age = _records_age(facts, workers)
    last = f"they last {span(PRESENCE_LASTS)}"
    return (
        f" (by the workers' records; {last})"
        if age is None
        else f" (by records up to {span(age)} old; {last})"
    )


def _age(facts: Facts, workers: Sequence[WorkerRecord]) -> dict[str, float | None]:
    age = _records_age(facts, workers)
    return {"records_age_seconds": None if age is None else age / MICROS_PER_SECOND}


def _records_age(facts: Facts, workers: Sequence[WorkerRecord]) -> int | None:
    signed_on = [each.expires_at - PRESENCE_LASTS for each in workers if each.expires_at]
    return max(facts.now - min(signed_on), 0) if signed_on else None


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


CHECKS: dict[WhyCode, Callable[[Facts], Found]] = {
    WhyCode.FINISHED: _finished,
    WhyCode.LEASE_EXPIRED: _lease_expired,
    WhyCode.WORKER_GONE: _worker_gone,
    WhyCode.CANCEL_REQUESTED: _cancel_requested,
    WhyCode.RUNNING: _running,
    WhyCode.CLAIMED: _claimed,
    WhyCode.SCHEDULE_PAUSED: _schedule_paused,
    WhyCode.WAITS_FOR_JOBS: _waits_for_jobs,
    WhyCode.RETRY: _retry,
    WhyCode.ASLEEP: _asleep,
    WhyCode.PUT_BACK: _put_back,
    WhyCode.NOT_DUE: _not_due,
    WhyCode.QUEUE_PAUSED: _queue_paused,
    WhyCode.HELD: _held,
    WhyCode.NO_WORKER: _no_worker,
    WhyCode.UNKNOWN_TASK: _unknown_task,
    WhyCode.SUSPECT: _suspect,
    WhyCode.SLOTS_BUSY: slots_busy,
    WhyCode.IN_LINE: _in_line,
}
