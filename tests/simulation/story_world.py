"""What worlds of schedules and of workflows have in common: their application, several people, any store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.memory.changes import Changes
from taskharbor.errors import ConfigurationError, JobConflict, JobNotFound, StoreError, WorkflowNotFound
from taskharbor.sync import run_inline
from tests.simulation import story
from tests.simulation.story_link import StoryLink
from tests.simulation.world import START, Ordered, Process, World


class StoryWorld(World):
    application = story.application

    def __init__(self, seed: int, store: Any = None) -> None:
        self._given_store = store
        self.people: list[Process] = []
        super().__init__(seed)
        self.changes = getattr(self.store, "_changes", None) or _changes()

    def _new_store(self) -> Any:
        return super()._new_store() if self._given_store is None else self._given_store(self.universe)

    def new_link(self, process: Process) -> StoryLink:
        return StoryLink(self, process)

    def ask(self, verb: str, *args: Any, **more: Any) -> Any:
        """What the store says, with nothing in between."""
        return run_inline(getattr(self.store, verb)(*args, **more))

    def _start_work(self) -> None:
        """The first operator is there already; a second one means that they may meet."""
        if self.chance.random() < 0.5:
            second = Process(self, "operator-2", self.rates)
            self.people.append(second)
            self._start(second, self._operate(second))
        super()._start_work()

    def _let_go(self) -> None:
        for queue in ("default", "mail"):
            self.ask("pause", queue, False)
        with self.changes.lock:
            self.changes.post()

    def _is_over(self, producer: Process, operator: Process) -> bool:
        return not any(each.alive for each in (producer, operator, *self.people)) and self._is_done()

    def _is_done(self) -> bool:
        raise NotImplementedError

    # -- people --

    async def until(self, instant: int) -> None:
        await asyncio.sleep(max(0.0, (instant - self.universe.now) / MICROS_PER_SECOND))

    async def insist(self, ask: Any) -> Any:
        """Ask again whenever no answer comes."""
        while True:
            try:
                return await ask()
            except StoreError:
                await asyncio.sleep(0.1)

    async def moments(self, most: int, seconds: float) -> AsyncIterator[None]:
        """So many times at which somebody does something."""
        for _ in range(self.chance.randint(0, most)):
            await asyncio.sleep(self.chance.random() * seconds)
            yield

    @staticmethod
    def whatever_comes() -> contextlib.AbstractContextManager[None]:
        """An operator who is refused, or gets no answer, leaves it at that."""
        return contextlib.suppress(JobNotFound, JobConflict, WorkflowNotFound, ConfigurationError, StoreError)


def _changes() -> Changes:
    changes = Changes()
    changes._sleepers = Ordered()  # type: ignore[assignment]
    return changes


def at_random(chance: Any, seconds: float) -> int:
    """Sometime at the beginning of the world."""
    return START + int(chance.random() * seconds * MICROS_PER_SECOND)
