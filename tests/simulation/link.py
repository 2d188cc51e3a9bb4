"""The way from a process to the store, on which everything may happen: delay, loss, death."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from taskharbor.clock import MICROS_PER_SECOND
from taskharbor.drivers.base import (
    Action,
    CancelRequests,
    ClaimRequest,
    Extension,
    Note,
    Operation,
    OperationVerdict,
    Transition,
)
from taskharbor.drivers.contract.holds import HoldKind
from taskharbor.drivers.memory import MemoryDriver
from taskharbor.errors import ConfigurationError, StoreUnavailable
from taskharbor.records import JobFilter, NewJob, State
from tests.simulation.universe import ProcessClock

if TYPE_CHECKING:
    from tests.simulation.world import Process, World


class Rates(Struct, frozen=True):
    """How likely each fault is, of one call. Every seed draws its own, many of them nought."""

    lost_request: float = 0.0  # it never arrived, and the caller is told so
    lost_answer: float = 0.0  # it took effect, and the caller is told that it failed
    late: float = 0.0  # the caller is told that it failed, and it takes effect afterwards
    slow: float = 0.0  # for up to `slow_seconds`
    crash: float = 0.0  # the process dies before or after it took effect
    freeze: float = 0.0  # the process stands still, as by SIGSTOP
    slow_seconds: float = 1.0
    freeze_seconds: float = 5.0
    usual_seconds: float = 0.003


FAIR = Rates()


class Link(MemoryDriver):
    """One process's handle on the one store."""

    def __init__(self, world: World, process: Process) -> None:
        self.clock: ProcessClock = process.clock
        self._store = world.store._store
        self._changes = world.store._changes
        self._world = world
        self._process = process

    def _time(self, now: int | None) -> int:
        return self._world.universe.now  # the store's clock, whatever the process's says

    async def _call(self, verb: str, about: Any, effect: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        world, process = self._world, self._process
        chance, rates = world.chance, process.rates
        if chance.random() < 0.7:
            await asyncio.sleep(chance.random() * rates.usual_seconds)
        draw = chance.random()
        if rates is not FAIR:
            draw -= rates.lost_request
            if draw < 0:
                process.trouble("lost request", verb)
                raise StoreUnavailable("simulated: the request was lost")
            draw -= rates.late
            if draw < 0:
                process.trouble("late", verb)
                delay = int(chance.random() * 2 * MICROS_PER_SECOND)
                world.universe.at(
                    world.universe.now + delay,
                    lambda: self._take_effect(verb, about, effect, late=True),
                )
                raise StoreUnavailable("simulated: no answer in time")
            draw -= rates.slow
            if draw < 0:
                seconds = chance.random() * rates.slow_seconds
                process.trouble("slow", verb, seconds)
                await asyncio.sleep(seconds)
            if 0 <= draw < rates.crash / 2 and world.may_crash(process):
                world.kill(process)
                await asyncio.get_running_loop().create_future()
        answer, took_effect_at = self._take_effect(verb, about, effect), world.universe.now
        if process.dies_unanswered:
            world.kill(process)
            await asyncio.get_running_loop().create_future()
        if rates is not FAIR and draw >= 0:
            if draw < rates.crash and world.may_crash(process):
                world.kill(process)
                await asyncio.get_running_loop().create_future()
            draw -= rates.crash
            if 0 <= draw < rates.freeze and world.may_crash(process):
                world.freeze(process, chance.random() * rates.freeze_seconds)
                await asyncio.sleep(0)
            draw -= rates.freeze
            if 0 <= draw < rates.lost_answer:
                process.trouble("lost answer", verb)
                raise StoreUnavailable("simulated: the answer was lost")
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * rates.usual_seconds)
        world.observer.answered(process, verb, about, took_effect_at)
        return answer

    def _take_effect(
        self, verb: str, about: Any, effect: Callable[[], Coroutine[Any, Any, Any]], late: bool = False
    ) -> Any:
        """The memory driver never suspends: its coroutine is over in one step."""
        observer = self._world.observer
        observer.before(verb, about)
        try:
            effect().send(None)
        except StopIteration as stop:
            self._note_requests(verb, stop.value)
            observer.after(self._process, verb, about, stop.value, late)
            return stop.value
        except ConfigurationError:
            if late:  # nobody is left to be told
                return None
            raise
        raise AssertionError("the memory driver suspended")

    def _note_requests(self, verb: str, answer: Any) -> None:
        """Every process learns at once that a running job was asked to end."""
        if verb == "operate" and any(each.verdict is OperationVerdict.REQUESTED for each in answer):
            self._world.cancels_requested += 1

    # -- every verb, by way of the link --

    async def enqueue(self, jobs: Sequence[NewJob], *, now: int | None = None) -> Any:
        return await self._call("enqueue", jobs, lambda: MemoryDriver.enqueue(self, jobs))

    async def claim(self, request: ClaimRequest, *, now: int | None = None) -> Any:
        return await self._call("claim", request, lambda: MemoryDriver.claim(self, request))

    async def extend(self, extensions: Sequence[Extension], *, now: int | None = None) -> Any:
        return await self._call("extend", extensions, lambda: MemoryDriver.extend(self, extensions))

    async def cancel_requests(self, tokens: Sequence[str], since: int | None = None) -> Any:
        mark = self._world.cancels_requested
        if mark == since:  # nothing goes over the link
            return CancelRequests(mark)

        async def look() -> Any:
            return (await self._world.store.cancel_requests(tokens)).jobs

        return CancelRequests(mark, await self._call("cancel_requests", tokens, look))

    async def take_expired(self, token: str, lease: int, *, now: int | None = None) -> Any:
        return await self._call(
            "take_expired", (token, lease), lambda: MemoryDriver.take_expired(self, token, lease)
        )

    async def settle(self, transitions: Sequence[Transition], *, now: int | None = None) -> Any:
        return await self._call("settle", transitions, lambda: MemoryDriver.settle(self, transitions))

    async def note(self, notes: Sequence[Note], *, now: int | None = None) -> Any:
        return await self._call("note", notes, lambda: MemoryDriver.note(self, notes))

    async def operate(
        self,
        operation: Operation,
        ids: Sequence[str],
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> Any:
        return await self._call(
            "operate", (operation, ids), lambda: MemoryDriver.operate(self, operation, ids, action=action)
        )

    async def pause(
        self, queue: str, paused: bool, *, now: int | None = None, action: Action | None = None
    ) -> None:
        await self._call(
            "pause", (queue, paused), lambda: MemoryDriver.pause(self, queue, paused, action=action)
        )

    async def hold(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        return bool(
            await self._call("hold", (kind, name), lambda: MemoryDriver.hold(self, kind, name, action=action))
        )

    async def release(
        self, kind: HoldKind, name: str, *, now: int | None = None, action: Action | None = None
    ) -> bool:
        return bool(
            await self._call(
                "release", (kind, name), lambda: MemoryDriver.release(self, kind, name, action=action)
            )
        )

    async def expire(self, limit: int, *, now: int | None = None) -> Any:
        return await self._call("expire", limit, lambda: MemoryDriver.expire(self, limit))

    async def prune(self, before: dict[State, int], limit: int, *, now: int | None = None) -> Any:
        return await self._call("prune", before, lambda: MemoryDriver.prune(self, before, limit))

    async def get(self, ids: Sequence[str], *, now: int | None = None) -> Any:
        return await self._call("get", ids, lambda: MemoryDriver.get(self, ids))

    async def history(self, job_id: str, limit: int = 100) -> Any:
        return await self._call("history", job_id, lambda: MemoryDriver.history(self, job_id, limit))

    async def put_records(
        self,
        kind: Any,
        about: Any,
        lasts: int | None,
        *,
        now: int | None = None,
        action: Action | None = None,
    ) -> None:
        await self._call("put_records", about, lambda: MemoryDriver.put_records(self, kind, about, lasts))

    async def list(
        self, where: JobFilter, *, cursor: str | None = None, limit: int = 100, now: int | None = None
    ) -> Any:
        return await self._call(
            "list", where, lambda: MemoryDriver.list(self, where, cursor=cursor, limit=limit)
        )
