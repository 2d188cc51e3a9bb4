"""A simulated world of recurring jobs: schedules that are paused, changed, run now and deleted while workers die."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from taskharbor.client.schedule import schedule_id
from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.errors import JobNotFound
from tests.simulation import story
from tests.simulation.recurring_observer import RecurringObserver
from tests.simulation.story_world import StoryWorld, at_random

if TYPE_CHECKING:
    from tests.simulation.world import Process

SCHEDULES = (
    "@every 0.7s", "@every 2s", "@every 5s", "* * * * * *", "*/2 * * * * *", "*/5 * * * * *", "1,4,40 * * * * *",
)  # fmt: skip
VERBS = (
    "pause", "resume", "resume", "run_now", "run_now", "run_now", "change", "misfire", "cancel", "cancel", "delete",
    "add", "stop the queue",
)  # fmt: skip


class ScheduleSpec(story.Wanted, Struct, frozen=True):
    """One schedule as the seed wants it."""

    id: str
    name: str
    at: int
    acts: list[story.Act]
    options: dict[str, Any]
    depends_on: tuple[str, ...] = ()

    @property
    def payload(self) -> dict[str, Any]:
        return {"label": self.name, "acts": self.acts}


class RecurringWorld(StoryWorld):
    observer: RecurringObserver
    operations_max, pause_seconds = 10, 2.0  # of each operator

    def _new_observer(self) -> RecurringObserver:
        return RecurringObserver(self)

    def _draw_specs(self) -> list[ScheduleSpec]:
        return [self._draw_spec(f"schedule-{index}") for index in range(self.chance.choice((1, 1, 2, 3)))]

    def _draw_spec(self, name: str) -> ScheduleSpec:
        chance = self.chance
        once = chance.random() < 0.15
        acts = story.draw_acts(chance, may_sleep=not once)
        options: dict[str, Any] = {
            "schedule": chance.choice(SCHEDULES),
            "misfire": chance.choice(("run_once", "skip")),
            "misfire_grace": chance.choice((0.5, 2.0, 60.0)),
            "dead_letter": chance.random() < 0.4,
            "max_attempts": chance.choice((1, 2, 3)),
            "retry": story.POLICY,
            "queue": chance.choice(("default", "mail")),
            "delivery": "at_most_once" if once else "at_least_once",
        }
        timeout = story.draw_timeout(chance, acts)
        if timeout is not None:
            options["timeout"] = timeout
        return ScheduleSpec(schedule_id("default", name), name, at_random(chance, 2), acts, options)

    # -- people --

    async def _add(self, process: Process, spec: ScheduleSpec, **changed: Any) -> None:
        await process.harbor.schedules.aadd(spec.name, "play", spec.payload, **{**spec.options, **changed})

    async def _produce(self, process: Process) -> None:
        for spec in self.specs:
            await self.until(spec.at)
            with contextlib.suppress(JobNotFound):  # somebody was quick to delete it
                await self.insist(lambda: self._add(process, spec))  # noqa: B023 - awaited before the next one

    async def _operate(self, process: Process) -> None:
        schedules, chance = process.harbor.schedules, self.chance
        async for _ in self.moments(self.operations_max, self.pause_seconds):
            spec = chance.choice(self.specs)
            with self.whatever_comes():
                match chance.choice(VERBS):
                    case "pause":
                        await schedules.apause(spec.name)
                    case "resume":
                        await schedules.aresume(spec.name)
                    case "run_now":
                        await schedules.arun_now(spec.name)
                    case "change":
                        await schedules.aupdate(spec.name, schedule=chance.choice(SCHEDULES))
                    case "misfire":
                        await schedules.aupdate(spec.name, misfire=chance.choice(("run_once", "skip")))
                    case "cancel":
                        await process.harbor.jobs.acancel(spec.id)
                    case "delete" if chance.random() < 0.5:
                        await schedules.adelete(spec.name)
                    case "stop the queue":
                        await process.harbor.queues.apause(spec.options["queue"])
                        await self.until(self.universe.now + int(chance.random() * 3 * MICROS_PER_SECOND))
                        await process.harbor.queues.aresume(spec.options["queue"])
                    case "add":
                        await self._add(process, spec, schedule=chance.choice(SCHEDULES))

    # -- the end --

    def _calm(self) -> None:
        super()._calm()
        self._calm_at = self.universe.now

    def _is_done(self) -> bool:
        """Every schedule that is there and not paused has had an ordinary run that was due since the faults stopped."""
        for it in self.observer.recurring.values():
            if it.recurrence is None:  # it has ended, or is about to
                over = self.universe.now > self._calm_at + MICROS_PER_SECOND
            else:
                over = it.recurrence.paused or it.last_settled_due > self._calm_at
            if not over:
                return False
        return True


class HecticWorld(RecurringWorld):
    """One schedule, and operators who do not leave it alone."""

    operations_max, pause_seconds = 40, 0.5

    def _draw_specs(self) -> list[ScheduleSpec]:
        return [self._draw_spec("schedule-0")]
