"""The way to any store that can be asked without suspending: every verb of the contract, with the store's time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigurationError
from taskharbor.sync import run_inline
from tests.simulation.link import Link

if TYPE_CHECKING:
    from tests.simulation.story_world import StoryWorld
    from tests.simulation.world import Process

TIMED = (
    "enqueue", "enqueue_workflow", "claim", "extend", "take_expired", "settle", "note", "operate", "expire", "prune",
    "prune_history", "get", "counts", "queues", "leases", "put_records", "records", "list",
)  # fmt: skip
TIMELESS = ("history", "steps", "results", "get_workflows", "list_workflows", "pause", "drop_records")
CHANGES = frozenset(
    {"enqueue", "enqueue_workflow", "settle", "operate", "pause", "expire"}
)  # as of the memory driver


class StoryLink(Link):
    """Only its way of waiting for news is the memory driver's."""

    def __init__(self, world: StoryWorld, process: Process) -> None:
        self.clock = process.clock
        self._changes = world.changes
        self._world = world
        self._process = process

    def _take_effect(
        self, verb: str, about: Any, effect: Callable[[], Coroutine[Any, Any, Any]], late: bool = False
    ) -> Any:
        observer = self._world.observer
        observer.before(verb, about)
        try:
            answer = run_inline(effect())
        except ConfigurationError:
            if late:  # nobody is left to be told
                return None
            raise
        if (
            not isinstance(self._world.store, MemoryDriver)
            and verb in CHANGES
            and (verb != "expire" or answer)
        ):
            with self._changes.lock:
                self._changes.post()
        self._note_requests(verb, answer)
        observer.after(self._process, verb, about, answer, late)
        return answer

    async def now(self) -> int:
        async def read() -> int:
            return self._world.universe.now

        return int(await self._call("now", None, read))


def _verb(name: str, timed: bool) -> Any:
    async def ask(self: StoryLink, *args: Any, now: int | None = None, **more: Any) -> Any:
        world = self._world

        def effect() -> Any:
            time = {"now": world.universe.now} if timed else {}
            return getattr(world.store, name)(*args, **more, **time)

        return await self._call(name, args[0] if len(args) == 1 else args, effect)

    ask.__name__ = name
    return ask


for _name in (*TIMED, *TIMELESS):
    setattr(StoryLink, _name, _verb(_name, _name in TIMED))
