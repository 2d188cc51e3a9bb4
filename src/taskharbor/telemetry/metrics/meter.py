"""`Meter`: records what happens to jobs, in whole batches, after the store has answered."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.contract.leasing import Claimed, SettleAnswer
from taskharbor.drivers.contract.settling import SettleResult, Transition
from taskharbor.records import AttemptStatus, Reason, State
from taskharbor.rules.recurrence import was_rearmed
from taskharbor.rules.settling import REFUSALS
from taskharbor.telemetry.metrics import buckets, catalogue
from taskharbor.telemetry.metrics.catalogue import Metric
from taskharbor.telemetry.metrics.cells import (
    JOB_METRICS,
    OTHER,
    OTHER_BASE,
    OTHER_NAME,
    PROCESS_BASE,
    PROCESS_METRICS,
    Cells,
    Pair,
    label,
)

LOOK_SECONDS = 1.0  # between two looks at the event loop
WORD_MAX = 2**63 - 1

_JOB = catalogue.offsets(JOB_METRICS)
_PROCESS = {name: PROCESS_BASE + start for name, start in catalogue.offsets(PROCESS_METRICS).items()}

_ENQUEUED = _JOB[catalogue.ENQUEUED.name]
_STARTED = _JOB[catalogue.STARTED.name]
_SUCCEEDED = _JOB[catalogue.SUCCEEDED.name]
_FAILED = _JOB[catalogue.FAILED.name]
_RETRIED = _JOB[catalogue.RETRIED.name]
_EXHAUSTED = _JOB[catalogue.EXHAUSTED.name]
_DEAD = _JOB[catalogue.DEAD.name]
_LOST = _JOB[catalogue.LOST.name]
_CANCELLED = _JOB[catalogue.CANCELLED.name]
_WAIT = _JOB[catalogue.WAIT.name]
_DURATION = _JOB[catalogue.DURATION.name]
_RETRY_LATENCY = _JOB[catalogue.RETRY_LATENCY.name]
_EXTENSIONS_REFUSED = _PROCESS[catalogue.EXTENSIONS_REFUSED.name]
_STREAM_TAKEN = _PROCESS[catalogue.STREAM_TAKEN.name]
_STREAM_HANDED_OVER = _PROCESS[catalogue.STREAM_HANDED_OVER.name]
_STREAM_DEAD = _PROCESS[catalogue.STREAM_DEAD.name]
_SETTLES_REFUSED = _PROCESS[catalogue.SETTLES_REFUSED.name]

_SUCCESS = AttemptStatus.SUCCEEDED
_DONE = SettleAnswer.DONE
_FAILURES = (AttemptStatus.FAILED, AttemptStatus.TIMED_OUT)
# They say nothing of how long a handler takes.
_WITHOUT_DURATION = (AttemptStatus.LOST, AttemptStatus.RELEASED)


class Ended(Protocol):
    """A job that ended, such as a `JobRecord`."""

    @property
    def queue(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def state(self) -> State: ...


class Meter:
    """Counts in the cells of this process; only one thread may call it.

    `declared` says whether a task of this name is declared: jobs of other tasks count under the task `_other`, because
    any producer can name a task, and a name could contain anything.
    """

    def __init__(self, cells: Cells, declared: Callable[[str], bool]) -> None:
        self.cells = cells
        self._words = cells.words
        self._declared = declared
        self._bases: dict[Pair, int] = {}  # by the names of a queue and a task
        self._bases_of_labels: dict[Pair, int] = {OTHER: OTHER_BASE}

    # -- what the worker calls --

    def claimed(self, jobs: Sequence[Claimed], seconds: float) -> Pair | None:
        """Record an answered claim; return the queue and the task of its jobs, if they all have the same.

        A job's first claim is how it counts as enqueued, so that each counts once.
        """
        self._process_time(catalogue.CLAIM_DURATION, seconds)
        self._process_value(catalogue.CLAIM_BATCH, len(jobs))
        words, series = self._words, series_of(jobs)
        if series is not None:
            words[self._base(*series) + _ENQUEUED] += [job.number for job in jobs].count(1)
            return series
        for (queue, task), firsts in Counter(
            (job.queue, job.task) for job in jobs if job.number == 1
        ).items():
            words[self._base(queue, task) + _ENQUEUED] += firsts
        return None

    def messages_taken(self, count: int) -> None:
        self._words[_STREAM_TAKEN] += count

    def messages_handed_over(self, count: int, dead: int) -> None:
        self._words[_STREAM_HANDED_OVER] += count
        self._words[_STREAM_DEAD] += dead

    def settled(
        self,
        jobs: Sequence[Claimed],
        transitions: Sequence[Transition],
        answers: Sequence[SettleResult],
        seconds: float | None = None,
    ) -> None:
        """Record a settled batch: jobs as they were claimed, their transitions and the store's answers, in one order.

        `seconds` is how long the store took; None if `store_settled` was called for each answer of the store.
        """
        if seconds is not None:
            self.store_settled(len(jobs), seconds)
        if not jobs:
            return
        began = [transition.started_at for transition in transitions]
        if (
            [transition.status for transition in transitions].count(_SUCCESS) == len(jobs)
            and [answer.answer for answer in answers].count(_DONE) == len(jobs)
            and None not in began
        ):
            self._succeeded(jobs, began, answers)  # type: ignore[arg-type]  # none of them is None
            return
        for job, transition, answer in zip(jobs, transitions, answers, strict=True):
            self._ended(job, transition, answer)

    def succeeded(
        self,
        jobs: Sequence[Claimed],
        began: Sequence[int],
        at: int,
        seconds: float,
        series: Pair | None = None,
    ) -> None:
        """Record a batch of successes as columns, all settled at this time: what nearly every settle is.

        `series` is the queue and the task of them all, where the caller knows it.
        """
        self.store_settled(len(jobs), seconds)
        self._succeeded_together(jobs, began, at, series or series_of(jobs))

    def store_settled(self, attempts: int, seconds: float) -> None:
        """Record that the store has answered a settle of this many attempts."""
        self._process_time(catalogue.SETTLE_DURATION, seconds)
        self._process_value(catalogue.SETTLE_BATCH, attempts)

    def ended_unbegun(self, job: Ended) -> None:
        """Record a job that ended without an attempt of its own: it expired, or ended with a dependency."""
        if job.state is State.DEAD:
            self._words[self._base(job.queue, job.task) + _DEAD] += 1
        elif job.state is State.CANCELLED:
            self._words[self._base(job.queue, job.task) + _CANCELLED] += 1

    def extension_refused(self) -> None:
        """Record that the store refused to extend a lease."""
        self._words[_EXTENSIONS_REFUSED] += 1

    def loop_was_late(self, seconds: float) -> None:
        """Record how late the event loop ran a timer."""
        self._process_time(catalogue.LOOP_LAG, seconds)

    # -- jobs --

    def _succeeded(self, jobs: Sequence[Claimed], began: list[int], answers: Sequence[SettleResult]) -> None:
        """Record successes and nothing else."""
        ends = {answer.at for answer in answers}
        if len(ends) == 1:
            self._succeeded_together(jobs, began, ends.pop(), series_of(jobs))
            return
        for end in ends:
            chosen = [index for index, answer in enumerate(answers) if answer.at == end]
            some = [jobs[each] for each in chosen]
            self._succeeded_together(some, [began[each] for each in chosen], end, series_of(some))

    def _succeeded_together(
        self, jobs: Sequence[Claimed], began: Sequence[int], end: int, series: Pair | None
    ) -> None:
        """Record successes that ended at the same time, of one series or of several."""
        due = [job.run_at for job in jobs]
        if series is not None:
            self._successes(self._base(*series), due, began, end)
            return
        groups: dict[Pair, tuple[list[int], list[int]]] = {}
        for job, due_at, begin in zip(jobs, due, began, strict=True):
            group = groups.get((job.queue, job.task))
            if group is None:
                group = groups[job.queue, job.task] = ([], [])
            group[0].append(due_at)
            group[1].append(begin)
        for (queue, task), group in groups.items():
            self._successes(self._base(queue, task), *group, end)

    def _successes(self, base: int, due: Sequence[int], began: Sequence[int], end: int) -> None:
        """Record successes of one series that ended at the same time."""
        count, bounds = len(due), buckets.TIMES
        self._words[base + _STARTED] += count
        self._words[base + _SUCCEEDED] += count
        ordered = sorted(began)
        shortest, longest = ordered[0] - max(due), ordered[-1] - min(due)
        bucket = bisect_left(bounds, shortest)
        if shortest >= 0 and bucket == bisect_left(bounds, longest):  # every wait is in this bucket
            self._words[base + _WAIT + bucket] += count
            self._add(base + _WAIT + len(bounds) + 1, sum(ordered) - sum(due))
        else:
            waits = [begin - due_at for begin, due_at in zip(began, due, strict=True)]
            self._observe_all(base + _WAIT, waits)
        self._observe_since(base + _DURATION, ordered, end)

    def _ended(self, job: Claimed, transition: Transition, answer: SettleResult) -> None:
        """Record one attempt, whatever its end. One that is to be settled again counts then."""
        words = self._words
        if answer.answer is not _DONE:
            words[_SETTLES_REFUSED] += answer.answer in REFUSALS
            return
        base = self._base(job.queue, job.task)
        status, began = transition.status, transition.started_at
        if began is not None:
            words[base + _STARTED] += 1
            self._observe(base + _WAIT, buckets.TIMES, began - job.run_at)
            if status not in _WITHOUT_DURATION:
                self._observe(base + _DURATION, buckets.TIMES, answer.at - began)
        words[base + _LOST] += status is AttemptStatus.LOST
        words[base + _FAILED] += status in _FAILURES
        match end_of(transition, answer):
            case State.SUCCEEDED:
                words[base + _SUCCEEDED] += 1
            case State.DEAD:
                words[base + _DEAD] += 1
                words[base + _EXHAUSTED] += transition.reason is Reason.EXHAUSTED
            case State.CANCELLED:
                words[base + _CANCELLED] += 1
            case _ if status in _FAILURES:
                words[base + _RETRIED] += 1
                self._observe(base + _RETRY_LATENCY, buckets.TIMES, transition.delay or 0)

    def _base(self, queue: str, task: str) -> int:
        """Return where the cells of a queue and task begin."""
        base = self._bases.get((queue, task))
        return self._new_base(queue, task) if base is None else base

    def _new_base(self, queue: str, task: str) -> int:
        # Two long names may have the same label, and then the same cells.
        pair = (label(queue), label(task) if self._declared(task) else OTHER_NAME)
        base = self._bases_of_labels.get(pair)
        if base is None:
            base = self.cells.publish(pair)
            if base is None:
                return OTHER_BASE
            self._bases_of_labels[pair] = base
        if (queue, task) == pair:  # of others there may be any number
            self._bases[pair] = base
        return base

    # -- histograms --

    def _process_time(self, metric: Metric, seconds: float) -> None:
        self._process_value(metric, round(seconds * MICROS_PER_SECOND))

    def _process_value(self, metric: Metric, value: int) -> None:
        self._observe(_PROCESS[metric.name], metric.bounds, value)

    def _observe(self, start: int, bounds: tuple[int, ...], value: int) -> None:
        value = max(0, value)  # clocks of several machines differ
        self._words[start + bisect_left(bounds, value)] += 1
        self._add(start + len(bounds) + 1, value)

    # Sorted, many times need one search for each bucket, not for each time.

    def _observe_all(self, start: int, times: list[int]) -> None:
        """Record many times at once. It sorts the list."""
        words, bounds = self._words, buckets.TIMES
        times.sort()
        if times[0] < 0:  # clocks of several machines differ
            times = [max(0, time) for time in times]
        bucket, last = bisect_left(bounds, times[0]), bisect_left(bounds, times[-1])
        counted = 0
        while bucket < last:
            within = bisect_right(times, bounds[bucket], counted)
            words[start + bucket] += within - counted
            counted = within
            bucket += 1
        words[start + last] += len(times) - counted
        self._add(start + len(bounds) + 1, sum(times))

    def _observe_since(self, start: int, instants: list[int], end: int) -> None:
        """Record the times from many instants, in their order, to one end."""
        words, bounds = self._words, buckets.TIMES
        if instants[-1] > end:  # clocks of several machines differ
            instants = [min(instant, end) for instant in instants]
        bucket, last = bisect_left(bounds, end - instants[-1]), bisect_left(bounds, end - instants[0])
        left = len(instants)  # the later an instant, the shorter its time
        while bucket < last:
            longer = bisect_left(instants, end - bounds[bucket], 0, left)
            words[start + bucket] += left - longer
            left = longer
            bucket += 1
        words[start + last] += left
        self._add(start + len(bounds) + 1, end * len(instants) - sum(instants))

    def _add(self, word: int, times: int) -> None:
        """Add to a sum of times, which stays at the most that a word holds: jobs may be due since the year 1."""
        self._words[word] = min(self._words[word] + times, WORD_MAX)


def series_of(jobs: Sequence[Claimed]) -> Pair | None:
    """Return the queue and the task of these jobs, if they all have the same."""
    queues, tasks = {job.queue for job in jobs}, {job.task for job in jobs}
    return (queues.pop(), tasks.pop()) if len(queues) == len(tasks) == 1 else None


def end_of(transition: Transition, answer: SettleResult) -> State:
    """Return where a settled attempt has led: to the end of its job or occurrence, or to READY for another attempt."""
    if was_rearmed(transition, answer):
        return State.CANCELLED if transition.to is State.READY else transition.to
    # The answer to a repeated settle may not say which state the job reached.
    state = answer.state or transition.to
    return state if state in (State.SUCCEEDED, State.DEAD, State.CANCELLED) else State.READY


async def watch_loop(meter: Meter, seconds: float = LOOK_SECONDS) -> None:
    """Record, until cancelled, how late the running event loop runs its timers."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + seconds
        await asyncio.sleep(seconds)
        meter.loop_was_late(loop.time() - due)
