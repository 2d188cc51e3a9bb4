"""The scenes: jobs that succeed, one that is retried, one that dies and is requeued, one that survives its worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from taskharbor.cli.demo.output import Output
from taskharbor.cli.demo.workers import LEASE_SECONDS, WorkerProcess, Workers
from taskharbor.cli.screen import span
from taskharbor.client.handle import Attempt, Job
from taskharbor.client.harbor import Harbor
from taskharbor.records import AttemptStatus, JobRecord, State
from taskharbor.views.job_documents import HistoryEntry, JobDocument, JobWithHistory

QUEUE = "demo"
LOOK_SECONDS = 0.05
SCENE_SECONDS_MAX = 30.0  # only an overloaded machine takes this long
PHOTOS = ("beach", "forest", "harbor", "island", "market", "mountain", "river", "sunset")
ENDINGS = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})


class Scenario:
    def __init__(self, harbor: Harbor, output: Output, workers: Workers, folder: Path) -> None:
        self._harbor = harbor
        self._output = output
        self._workers = workers
        self._bank = folder / "bank-is-open"
        self._reported: dict[str, int] = {}  # job id → the last attempt that was reported
        self.jobs: list[Job[Any]] = []

    def run(self) -> None:
        worker = self._start_worker()
        self._many_succeed()
        self._one_is_retried()
        self._one_dies_and_is_requeued()
        self._one_outlives_its_worker(worker)

    # -- scenes --

    def _many_succeed(self) -> None:
        self._output.scene(f"1. {len(PHOTOS)} jobs, four at a time")
        jobs = [
            self._enqueue("photo:resize", photo=f"{photo}.jpg", seconds=0.3 + 0.05 * index)
            for index, photo in enumerate(PHOTOS)
        ]
        self._output.say(f"enqueued {len(jobs)} of photo:resize")
        self._follow(jobs)

    def _one_is_retried(self) -> None:
        self._output.scene("2. a job fails twice, and is retried with growing delays")
        self._follow([self._enqueue("report:fetch", report="report")])

    def _one_dies_and_is_requeued(self) -> None:
        self._output.scene("3. a job fails for good, waits in the dead-letter queue, and is requeued")
        job = self._enqueue("card:charge", amount="12.00 EUR", bank=str(self._bank))
        self._follow([job], expect=State.DEAD)
        [dead] = [dead for dead in self._harbor.dlq.list(queue=QUEUE) if dead.id == job.id]
        self._output.say(f"{dead.task} is in the dead-letter queue: {dead.reason}, {dead.error}", "red")
        self._bank.touch()
        self._output.say("the bank is back; an operator requeues the job")
        self._harbor.dlq.requeue(job.id)
        self._follow([job])

    def _one_outlives_its_worker(self, worker: WorkerProcess) -> None:
        self._output.scene(f"4. a worker is killed in the middle of a job (its lease is {LEASE_SECONDS} s)")
        job = self._enqueue("video:encode", video="film.mp4", seconds=1.6)
        self._follow([job], until=_is_well_under_way)
        worker.kill()
        self._output.say(f"kill -9 {worker.pid}: {worker.name} is gone, its job is still leased to it", "red")
        self._start_worker()
        self._follow([job])

    # -- what scenes are made of --

    def _start_worker(self) -> WorkerProcess:
        worker = self._workers.start()
        self._output.say(f"{worker.name} starts (pid {worker.pid})")
        return worker

    def _enqueue(self, task: str, **payload: Any) -> Job[Any]:
        job = self._harbor.enqueue(task, payload, queue=QUEUE)
        self.jobs.append(job)
        return job

    def _follow(
        self,
        jobs: Sequence[Job[Any]],
        *,
        expect: State = State.SUCCEEDED,
        until: Callable[[JobRecord], bool] = lambda record: record.state in ENDINGS,
    ) -> None:
        """Show the jobs and report each attempt, until all of them are where the scene wants them."""
        give_up_at = time.monotonic() + SCENE_SECONDS_MAX
        while True:
            standing = [self._look(job) for job in jobs]
            self._output.show(standing)
            if all(until(record) for record in standing):
                break
            if time.monotonic() > give_up_at:
                worker = self._workers.started[-1]
                raise click.ClickException(
                    f"the demo is stuck; {worker.name} last said: {worker.last_log_line}"
                )
            time.sleep(LOOK_SECONDS)
        for record in standing:
            if record.state in ENDINGS and record.state is not expect:
                raise click.ClickException(
                    f"{record.task} should be {expect}, and is {record.state}: {record.error}"
                )

    def _look(self, job: Job[Any]) -> JobRecord:
        attempts = job.history()
        now = job.refresh()  # afterwards, so that it includes the retry that an attempt led to
        if now.state in ENDINGS:
            attempts = job.history()  # again, so that the last attempt is included
        for attempt in reversed(attempts):
            if attempt.number > self._reported.get(job.id, 0):
                self._reported[job.id] = attempt.number
                self._report(now, attempt)
        return now.record

    def _report(self, job: Job[Any], attempt: Attempt) -> None:
        by = self._workers.name_of(attempt.worker)
        about = f"{job.task} attempt {attempt.number}"
        match attempt.status:
            case AttemptStatus.SUCCEEDED:
                result = JobDocument.of(job).result
                self._output.say(f"{about} succeeded on {by}: {result}", "green")
            case AttemptStatus.LOST:
                self._output.say(f"{about} was lost with {by}; the job is runnable again", "yellow")
            case _:
                is_retried = job.state not in ENDINGS and job.number == attempt.number
                again = f"; again in {span(_delay(job, attempt))}" if is_retried else ""
                self._output.say(f"{about} {attempt.status}: {attempt.error}{again}", "yellow")

    # -- afterwards --

    def summary(self) -> list[list[str]]:
        """Return each job with how its attempts ended; jobs with the same attempts share a row."""
        stories: dict[tuple[str, str, str], int] = {}
        for job in self.jobs:
            story = ", ".join(str(attempt.status) for attempt in reversed(job.history()))
            row = (job.task, str(job.refresh().state), story)
            stories[row] = stories.get(row, 0) + 1
        return [[str(count), *row] for row, count in stories.items()]

    def document(self) -> dict[str, Any]:
        return {
            "seconds": round(self._output.seconds, 3),
            "jobs": [
                JobWithHistory.of(job.refresh(), history=[HistoryEntry.of(each) for each in job.history()])
                for job in self.jobs
            ],
        }


def _is_well_under_way(record: JobRecord) -> bool:
    return record.state is State.RUNNING and record.progress is not None and record.progress.fraction >= 0.4


def _delay(job: Job[Any], attempt: Attempt) -> float:
    return max(0.0, (job.run_at - attempt.finished_at).total_seconds())
