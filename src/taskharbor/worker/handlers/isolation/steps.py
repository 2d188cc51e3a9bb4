"""Durable steps in a handler process: the worker, which holds the lease, reads and stores them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from taskharbor.records import StepRecord
from taskharbor.worker.handlers.isolation.link import Link
from taskharbor.worker.handlers.isolation.messages import ReadSteps, StepsRead, StepWritten, WriteStep
from taskharbor.worker.handlers.steps import Steps

T = TypeVar("T")


class LinkedSteps:
    """Asks the worker over the link, and waits for the answer that the listening thread receives."""

    def __init__(self, link: Link, serial: int) -> None:
        self._link = link
        self._serial = serial
        self._lock = threading.Lock()
        self._waiting: dict[str | None, Future[Any]] = {}  # by the step's name; None for `ReadSteps`

    async def read(self) -> dict[str, StepRecord]:
        found: dict[str, StepRecord] = await self._answer(None, ReadSteps(self._serial))
        return found

    async def write(self, name: str, result: str) -> None:
        await self._answer(name, WriteStep(self._serial, name, result))

    async def _answer(self, key: str | None, question: ReadSteps | WriteStep) -> Any:
        answer: Future[Any] = Future()
        with self._lock:
            self._waiting[key] = answer
        self._link.send(question)
        return await asyncio.wrap_future(answer)

    def receive(self, answer: StepsRead | StepWritten) -> None:
        """Give the answer to the call that waits for it. Called in the listening thread."""
        key = answer.name if isinstance(answer, StepWritten) else None
        with self._lock:
            waiting = self._waiting.pop(key, None)
        if waiting is not None and waiting.set_running_or_notify_cancel():
            waiting.set_result(answer.steps if isinstance(answer, StepsRead) else None)


class IsolatedSteps(Steps):
    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Block the thread: the process runs only this handler."""
        return asyncio.run(coroutine)
