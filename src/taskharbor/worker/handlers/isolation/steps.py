"""Durable steps in a handler's process: the worker stores them, under the lease that it holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from taskharbor.records import StepRecord
from taskharbor.worker.handlers.isolation.link import Link
from taskharbor.worker.handlers.isolation.messages import AskSteps, KeepStep, StepKept, StepsFound
from taskharbor.worker.handlers.steps import Steps

T = TypeVar("T")


class LinkedSteps:
    """Asks the worker, and waits for its answer, which the thread that listens to it brings."""

    def __init__(self, link: Link, serial: int) -> None:
        self._link = link
        self._serial = serial
        self._lock = threading.Lock()
        self._waiting: dict[str | None, Future[Any]] = {}  # by the step's name; None: for all of them

    async def read(self) -> dict[str, StepRecord]:
        found: dict[str, StepRecord] = await self._answer(None, AskSteps(self._serial))
        return found

    async def write(self, name: str, result: str) -> None:
        await self._answer(name, KeepStep(self._serial, name, result))

    async def _answer(self, key: str | None, question: AskSteps | KeepStep) -> Any:
        answer: Future[Any] = Future()
        with self._lock:
            self._waiting[key] = answer
        self._link.send(question)
        return await asyncio.wrap_future(answer)

    def heed(self, answer: StepsFound | StepKept) -> None:
        """In the thread that listens."""
        key = answer.name if isinstance(answer, StepKept) else None
        with self._lock:
            waiting = self._waiting.pop(key, None)
        if waiting is not None and waiting.set_running_or_notify_cancel():
            waiting.set_result(answer.steps if isinstance(answer, StepsFound) else None)


class IsolatedSteps(Steps):
    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The handler is the process's only one: nobody else needs its thread meanwhile."""
        return asyncio.run(coroutine)
