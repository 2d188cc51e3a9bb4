"""Durable steps: an attempt stores their results under its lease, and later attempts read them instead of repeating."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from taskharbor.clock import MICROS_PER_SECOND, from_micros, seconds_to_micros, to_micros
from taskharbor.codec import RESULT_LIMIT, checked_name, encode_result, result_decoder, shorten
from taskharbor.drivers.base import SettleAnswer, StepNote
from taskharbor.errors import ConfigurationError, LeaseLost, PayloadError
from taskharbor.own_tasks import own_task
from taskharbor.records import Delivery, StepRecord
from taskharbor.sync import hand_over
from taskharbor.telemetry.logs import log_line
from taskharbor.worker.pipeline.leases import StoreTime

if TYPE_CHECKING:
    from taskharbor.worker.pipeline.execution import Execution

logger = logging.getLogger("taskharbor.worker")

T = TypeVar("T")

STEPS_MAX = 1_000  # of one job, sleeps included
STEPS_BYTES_MAX = 16 * RESULT_LIMIT  # an attempt reads all of them at once
_NO_SPAN = nullcontext()
GLANCE_SECONDS = 0.05  # how often a waiting thread wakes, so that an interruption can reach it


class FallAsleep(BaseException):
    """Raised through the handler by `ctx.sleep`. Not an Exception, so that few handlers swallow it."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(f"asleep for {seconds:g} s: {name}")
        self.name = name
        self.seconds = seconds


class Sleep(msgspec.Struct, forbid_unknown_fields=True):
    """What is stored under the name of a sleep."""

    sleep_until: datetime


class StepStore(Protocol):
    """Where the steps of one job are kept."""

    async def read(self) -> dict[str, StepRecord]: ...

    async def write(self, name: str, result: str) -> None:
        """Store the result of a step, or raise `LeaseLost`: then the handler must stop."""


class Steps:
    """The steps of one attempt. Its methods return awaitables on an event loop, and values in a thread."""

    def __init__(
        self, execution: Execution, store: StepStore, time: StoreTime, *, is_row_missing: bool = False
    ) -> None:
        self._execution = execution
        self._is_row_missing = is_row_missing  # it came from a log, and no store has a row for its steps
        self._store = store
        self._time = time
        self._met: set[str] = set()  # in this attempt
        self._known: dict[str, StepRecord] = {}
        self._reading: asyncio.Future[dict[str, StepRecord]] | None = None
        self._has_read = execution.claimed.number == 1  # a first attempt has no stored steps

    # -- what a handler calls --

    def step(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not callable(function):
            raise ConfigurationError(
                f"ctx.step takes a name, a function and its arguments, not {shorten(function)}; "
                'for example ctx.step("charge", charge, order)'
            )
        checked = checked_name("step", name)
        if _on_a_loop():
            return self._step(checked, function, args, kwargs)
        self._meet(checked)
        decode = result_decoder(function)
        known = self._await(self._recall(checked))
        if known is not None:
            return decode(known)
        with self._span(checked):
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
        return decode(self._await(self._remember(checked, value)))

    def sleep(self, name: str, seconds: float) -> Any:
        checked = checked_name("step", name)
        micros = seconds_to_micros(seconds, "ctx.sleep()'s seconds")
        if self._execution.delivery is Delivery.AT_MOST_ONCE:
            raise ConfigurationError(
                "an at_most_once job may not sleep: waking up begins its handler again; "
                "enqueue another job with a delay instead"
            )
        falling = self._sleep(checked, micros)
        return falling if _on_a_loop() else self._await(falling)

    # -- on the loop --

    async def _step(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._meet(name)
        # The first attempt also returns what a later one would read: a tuple is a list for both.
        decode = result_decoder(function)
        known = await self._recall(name)
        if known is not None:
            return decode(known)
        with self._span(name):
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                value = await value
        return decode(await self._remember(name, value))

    async def _sleep(self, name: str, micros: int) -> None:
        self._meet(name)
        known = await self._recall(name)
        if known is None:
            until = self._time.now() + micros
            await self._keep(name, msgspec.json.encode(Sleep(from_micros(until))).decode())
        else:
            until = _until(name, known)
        # The store hands out no job before its `run_at`, so a late `run_at` proves the end of the sleep, whatever our
        # clock says.
        if self._execution.claimed.run_at < until and (left := until - self._time.now()) > 0:
            raise FallAsleep(name, left / MICROS_PER_SECOND)

    def _span(self, name: str) -> AbstractContextManager[None]:
        tracing = self._execution.harbor.tracing
        return _NO_SPAN if tracing is None else tracing.step(name)

    # -- remembering --

    def _meet(self, name: str) -> None:
        if name in self._met:
            raise ConfigurationError(
                f"this attempt has used the step name {name!r} already, and each step needs a name of its own; "
                'use, for example, f"charge-{order.id}"'
            )
        self._met.add(name)

    async def _recall(self, name: str) -> str | None:
        if self._is_row_missing:  # the handler begins again, at once, as a job of the store
            raise FallAsleep(f"until the message is a job of the store, for {name!r}", 0.0)
        if not self._has_read:
            if self._reading is None:  # several steps may ask at once: the first one reads for all
                self._reading = asyncio.ensure_future(self._store.read())
            self._known.update(await asyncio.shield(self._reading))
            self._has_read = True
        record = self._known.get(name)
        if record is None:
            return None
        return self._execution.harbor.sealing.open(record.result, f"step {name!r}")

    async def _remember(self, name: str, value: Any) -> str:
        try:
            result = encode_result(value)
        except PayloadError as error:
            raise type(error)(f"step {name!r}: {error}") from error
        await self._keep(name, self._execution.harbor.sealing.seal(result, f"step {name!r}", RESULT_LIMIT))
        return result

    async def _keep(self, name: str, result: str) -> None:
        if len(self._known) >= STEPS_MAX:
            raise ConfigurationError(
                f"a job has at most {STEPS_MAX:,} steps, and {name!r} would exceed that; "
                "enqueue children, or do more in each step"
            )
        size = sum(len(record.result) for record in self._known.values()) + len(result)
        if size > STEPS_BYTES_MAX:
            raise ConfigurationError(
                f"the steps of a job take at most {STEPS_BYTES_MAX:,} bytes together, and with {name!r} they would "
                f"take {size:,}; store the data elsewhere and return its address"
            )
        await self._store.write(name, result)
        self._known[name] = StepRecord(result, self._execution.claimed.number)

    # -- in a thread --

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine on the worker's loop, and wait here so that an interruption can end the wait."""
        value = self._run(_uncancellable_by_sleep(coroutine))
        if isinstance(value, FallAsleep):
            raise value
        return value  # type: ignore[no-any-return]

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop = self._execution.loop
        assert loop is not None, "a handler in a thread belongs to a loop"
        doing: Future[T] = Future()

        def begin() -> None:
            task = own_task(coroutine)
            task.add_done_callback(lambda _: hand_over(task, doing))
            doing.add_done_callback(lambda _: doing.cancelled() and loop.call_soon_threadsafe(task.end))

        loop.call_soon_threadsafe(begin)
        try:
            while not doing.done():
                wait([doing], GLANCE_SECONDS)
            return doing.result()
        except BaseException:
            doing.cancel()
            raise


class LeasedSteps:
    """The steps of a job whose lease this worker holds."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._store = execution.pipeline.store

    async def read(self) -> dict[str, StepRecord]:
        return await self._store.steps(self._execution.claimed.id)

    async def write(self, name: str, result: str) -> None:
        execution = self._execution
        claimed, token = execution.claimed, execution.lease.token
        note = StepNote(token, claimed.id, claimed.number, name, result)
        answer = await self._store.keep_step(note, execution.fields())
        if answer is SettleAnswer.DONE:
            return
        log_line(
            logger,
            logging.WARNING,
            "Job {job} lost its lease; its step {step} was not stored",
            execution.fields() | {"step": name, "answer": str(answer)},
        )
        execution.lose_lease()
        raise LeaseLost(
            claimed.id,
            f"step {name!r} of job {claimed.id} was not stored: this attempt no longer holds the job's lease "
            f"({answer}), and another attempt may be running; end the handler here",
        )


def _until(name: str, stored: str) -> int:
    try:
        return to_micros(msgspec.json.decode(stored, type=Sleep).sleep_until)
    except msgspec.MsgspecError:
        raise ConfigurationError(
            f"{name!r} is stored as a step of this job, so it cannot name a sleep; give the sleep another name"
        ) from None


async def _awaited(value: Any) -> Any:
    return await value


async def _uncancellable_by_sleep(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return `FallAsleep` as a value: raised in a task, it would end the loop."""
    try:
        return await coroutine
    except FallAsleep as signal:
        return signal


def _on_a_loop() -> bool:
    return asyncio._get_running_loop() is not None
