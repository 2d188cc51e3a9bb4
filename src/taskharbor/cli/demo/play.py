"""The plot: jobs that succeed, one that is retried, one that dies and is requeued, one that outlives its worker."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from taskharbor.cli.demo.crew import LEASE_SECONDS, Crew, CrewMember
from taskharbor.cli.demo.stage import Stage
from taskharbor.cli.screen import span
from taskharbor.client.handle import Attempt, Job
from taskharbor.client.harbor import Harbor
from taskharbor.records import AttemptStatus, JobRecord, State
from taskharbor.views.documents import HistoryEntry, JobDocument, JobWithHistory

QUEUE = "demo"
LOOK_SECONDS = 0.05
SCENE_SECONDS_MAX = 30.0  # only a machine in trouble takes so long
PHOTOS = ("beach", "forest", "harbor", "island", "market", "mountain", "river", "sunset")
ENDINGS = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})


class Play:
    def __init__(self, harbor: Harbor, stage: Stage, crew: Crew, folder: Path) -> None:
        self._harbor = harbor
        self._stage = stage
        self._crew = crew
        self._bank = folder / "bank-is-open"
        self._told: dict[str, int] = {}  # job id → the last attempt that was told of
        self.jobs: list[Job[Any]] = []

    def perform(self) -> None:
        worker = self._start_worker()
        self._many_succeed()
        self._one_is_retried()
        self._one_dies_and_is_requeued()
        self._one_outlives_its_worker(worker)

    # -- scenes --

    def _many_succeed(self) -> None:
        self._stage.scene(f"1. {len(PHOTOS)} jobs, four at a time")
        jobs = [
            self._enqueue("photo:resize", photo=f"{photo}.jpg", seconds=0.3 + 0.05 * index)
            for index, photo in enumerate(PHOTOS)
        ]
        self._stage.say(f"enqueued {len(jobs)} of photo:resize")
        self._follow(jobs)

    def _one_is_retried(self) -> None:
        self._stage.scene("2. a job fails twice, and is retried with growing delays")
        self._follow([self._enqueue("report:fetch", report="report")])

    def _one_dies_and_is_requeued(self) -> None:
        self._stage.scene("3. a job fails for good, waits in the dead-letter queue, and is requeued")
        job = self._enqueue("card:charge", amount="12.00 EUR", bank=str(self._bank))
        self._follow([job], expect=State.DEAD)
        [dead] = [dead for dead in self._harbor.dlq.list(queue=QUEUE) if dead.id == job.id]
        self._stage.say(f"{dead.task} is in the dead-letter queue: {dead.reason}, {dead.error}", "red")
        self._bank.touch()
        self._stage.say("the bank is back; an operator requeues the job")
        self._harbor.dlq.requeue(job.id)
        self._follow([job])

    def _one_outlives_its_worker(self, worker: CrewMember) -> None:
        self._stage.scene(f"4. a worker is killed in the middle of a job (its lease is {LEASE_SECONDS} s)")
        job = self._enqueue("video:encode", video="film.mp4", seconds=1.6)
        self._follow([job], until=_is_well_under_way)
        worker.kill()
        self._stage.say(f"kill -9 {worker.pid}: {worker.name} is gone, its job is still leased to it", "red")
        self._start_worker()
        self._follow([job])

    # -- what scenes are made of --

    def _start_worker(self) -> CrewMember:
        member = self._crew.start()
        self._stage.say(f"{member.name} starts (pid {member.pid})")
        return member

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
        """Show the jobs and tell of each attempt, until all of them are where the scene wants them."""
        give_up_at = time.monotonic() + SCENE_SECONDS_MAX
        while True:
            standing = [self._look(job) for job in jobs]
            self._stage.show(standing)
            if all(until(record) for record in standing):
                break
            if time.monotonic() > give_up_at:
                member = self._crew.members[-1]
                raise click.ClickException(f"the demo is stuck; {member.name} last said: {member.last_words}")
            time.sleep(LOOK_SECONDS)
        for record in standing:
            if record.state in ENDINGS and record.state is not expect:
                raise click.ClickException(
                    f"{record.task} should be {expect}, and is {record.state}: {record.error}"
                )

    def _look(self, job: Job[Any]) -> JobRecord:
        attempts = job.history()
        now = job.refresh()  # afterwards, so that it knows of the retry that an attempt led to
        if now.state in ENDINGS:
            attempts = job.history()  # and so that the last attempt is not missed
        for attempt in reversed(attempts):
            if attempt.number > self._told.get(job.id, 0):
                self._told[job.id] = attempt.number
                self._tell(now, attempt)
        return now.record

    def _tell(self, job: Job[Any], attempt: Attempt) -> None:
        by = self._crew.name_of(attempt.worker)
        about = f"{job.task} attempt {attempt.number}"
        match attempt.status:
            case AttemptStatus.SUCCEEDED:
                result = JobDocument.of(job).result
                self._stage.say(f"{about} succeeded on {by}: {result}", "green")
            case AttemptStatus.LOST:
                self._stage.say(f"{about} was lost with {by}; the job is runnable again", "yellow")
            case _:
                is_retried = job.state not in ENDINGS and job.number == attempt.number
                again = f"; again in {span(_delay(job, attempt))}" if is_retried else ""
                self._stage.say(f"{about} {attempt.status}: {attempt.error}{again}", "yellow")

    # -- afterwards --

    def summary(self) -> list[list[str]]:
        """Each job with the story of its attempts; those with the same story in one row."""
        stories: dict[tuple[str, str, str], int] = {}
        for job in self.jobs:
            story = ", ".join(str(attempt.status) for attempt in reversed(job.history()))
            row = (job.task, str(job.refresh().state), story)
            stories[row] = stories.get(row, 0) + 1
        return [[str(count), *row] for row, count in stories.items()]

    def document(self) -> dict[str, Any]:
        return {
            "seconds": round(self._stage.seconds, 3),
            "jobs": [
                JobWithHistory.of(job.refresh(), history=[HistoryEntry.of(each) for each in job.history()])
                for job in self.jobs
            ],
        }


def _is_well_under_way(record: JobRecord) -> bool:
    return record.state is State.RUNNING and record.progress is not None and record.progress.fraction >= 0.4


def _delay(job: Job[Any], attempt: Attempt) -> float:
    return max(0.0, (job.run_at - attempt.finished_at).total_seconds())
