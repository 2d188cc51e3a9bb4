"""The handler processes of one worker: kept warm, reused, and only as many as run at once."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from taskharbor.clock import Clock, Timer, wait_for
from taskharbor.errors import ConfigurationError
from taskharbor.function_refs import MAIN_NAMES, address_of, main_module
from taskharbor.own_tasks import OwnTask, own_task
from taskharbor.worker.handlers.isolation.messages import Init
from taskharbor.worker.handlers.isolation.process import IsolatedProcess

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor

logger = logging.getLogger("taskharbor.worker")

IDLE_SECONDS = 60.0  # after which an idle process is retired
START_SECONDS = 60.0  # for the program's imports and the start hooks
STOP_SECONDS = 5.0  # for the stop hooks of a retired process
CLOSE_SECONDS = 1.0  # the same when the worker ends
STARTING_MAX = max(2, os.cpu_count() or 1)  # processes that start at the same time


class CannotBegin(Exception):
    """No process could be started for a job; the message says why."""


class ProcessPool:
    """Starts a process when a job finds none idle, so the slots bound it; retires idle processes."""

    def __init__(self, harbor: Harbor, clock: Clock, max_jobs: int | None = None) -> None:
        self._harbor = harbor
        self._clock = clock
        self._max_jobs = max_jobs
        self._all: set[IsolatedProcess] = set()
        self._idle: list[tuple[IsolatedProcess, Timer]] = []  # a stack: the last one used is used next
        self._guard: _Guard | None = None
        self._init: Init | None = None
        self._waiting: deque[asyncio.Future[IsolatedProcess | None]] = deque()
        self._starting: set[OwnTask[None]] = set()
        self._closing = False
        self._emptied = asyncio.Event()

    # -- taking and giving back --

    def take_idle(self) -> IsolatedProcess | None:
        """Take a process that waits for a call, if there is one."""
        if not self._idle:
            return None
        process, timer = self._idle.pop()
        timer.cancel()
        return process

    async def take(self) -> IsolatedProcess | None:
        """Wait for the first process that becomes free or ready; return None after `begin_no_more`."""
        if self._closing:
            return None
        waiter: asyncio.Future[IsolatedProcess | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._grow()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and (process := waiter.result()) is not None:
                self.give_back(process)
            raise

    def give_back(self, process: IsolatedProcess) -> None:
        """Give a process that is free again to the next waiter, or keep it idle for a while."""
        if process not in self._all or process.is_ending:
            pass
        elif process.serial is not None:  # still busy with a call whose execution has ended
            process.kill()
        elif self._closing or (self._max_jobs is not None and process.calls >= self._max_jobs):
            self._retire(process)
        elif not self._serve_waiter(process):
            timer = self._clock.call_later(IDLE_SECONDS, lambda: self._retire_idle(process))
            self._idle.append((process, timer))
        self._grow()

    def _serve_waiter(self, answer: IsolatedProcess | CannotBegin) -> bool:
        """Answer the next waiter; return whether there was one."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if waiter.done():
                continue
            if isinstance(answer, CannotBegin):
                waiter.set_exception(answer)
            else:
                waiter.set_result(answer)
            return True
        return False

    # -- starting processes --

    def _grow(self) -> None:
        """Start a few processes at a time: starts compete for CPU with handlers, and one may become free first."""
        waiting = sum(not waiter.done() for waiter in self._waiting)
        while not self._closing and len(self._starting) < min(STARTING_MAX, waiting):
            starting = own_task(self._start_one())
            self._starting.add(starting)
            starting.add_done_callback(self._start_ended)

    def _start_ended(self, starting: asyncio.Task[None]) -> None:
        assert isinstance(starting, OwnTask), "_grow started it"
        self._starting.discard(starting)
        if not starting.cancelled() and (error := starting.exception()) is not None:
            self._fail_waiter(error)
        self._grow()

    def _fail_waiter(self, problem: object) -> None:
        self._serve_waiter(CannotBegin(f"a process for its handler cannot be started: {problem}"))

    async def _start_one(self) -> None:
        process = self._spawn()
        try:
            problem = await wait_for(self._clock, process.start(self._init_message()), START_SECONDS)
        except TimeoutError:
            problem = f"it was not ready within {START_SECONDS:g} s"
        except BaseException:  # the worker is shutting down
            process.kill()
            raise
        if problem is None:
            self.give_back(process)
        else:
            process.kill()
            self._fail_waiter(problem)

    # -- closing --

    def begin_no_more(self) -> None:
        """Give no process to a waiter any more, and retire the idle ones."""
        self._closing = True
        for starting in self._starting:
            starting.end()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
        while (process := self.take_idle()) is not None:
            self._retire(process)

    async def close(self) -> None:
        """End every process before returning."""
        self.begin_no_more()
        for process in self._all:
            if process.serial is not None:
                process.kill()
        try:
            await self._until_empty(CLOSE_SECONDS)
        finally:
            for process in self._all:
                process.kill()
            guard, self._guard = self._guard, None
            if guard is not None:
                guard.close()
        await self._until_empty(CLOSE_SECONDS)

    async def _until_empty(self, seconds: float) -> None:
        async def empty() -> None:
            while self._all:
                self._emptied.clear()
                await self._emptied.wait()

        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await empty()

    def _retire_idle(self, process: IsolatedProcess) -> None:
        self._idle = [entry for entry in self._idle if entry[0] is not process]
        self._retire(process)

    def _retire(self, process: IsolatedProcess) -> None:
        process.stop()
        # The real clock, even in tests: a real process has to end.
        asyncio.get_running_loop().call_later(STOP_SECONDS, process.kill)

    # -- processes --

    def _spawn(self) -> IsolatedProcess:
        if self._guard is None:
            self._guard = _Guard()
        process = IsolatedProcess(self._gone)
        self._all.add(process)
        self._guard.watch(process.group)
        return process

    def _gone(self, process: IsolatedProcess) -> None:
        self._all.discard(process)
        if self._guard is not None:
            self._guard.forget(process.group)
        for entry in self._idle:
            if entry[0] is process:
                entry[1].cancel()
        self._idle = [entry for entry in self._idle if entry[0] is not process]
        if not self._all:
            self._emptied.set()
        self._grow()

    def _init_message(self) -> Init:
        if self._init is None:
            self._init = init_for(self._harbor)
        return self._init


class _Guard:
    """A process that kills the handlers' groups if this one is killed first; see `guard.py`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            bufsize=0,
        )

    def watch(self, group: int) -> None:
        self._write(b"+%d\n" % group)

    def forget(self, group: int) -> None:
        self._write(b"-%d\n" % group)

    def close(self) -> None:
        """Let it kill the groups that are left, and exit; a thread reaps it."""
        assert self._process.stdin is not None, "it was started with a pipe"
        self._process.stdin.close()
        threading.Thread(target=self._process.wait, name="taskharbor-reaper", daemon=True).start()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(BrokenPipeError):  # it was killed; each handler process still watches its connection
            self._process.stdin.write(line)


def init_for(harbor: Harbor) -> Init:
    """Describe this process to a handler process. A hook that it could not import is an error here."""
    start = [address_of(hook, "an on_worker_start hook") for hook in harbor.start_hooks]
    stop = [address_of(hook, "an on_worker_stop hook") for hook in harbor.stop_hooks]
    addresses = [task.address for task in harbor.tasks.values() if task.address is not None]
    made_in = [name for name in harbor.made_in if not name.startswith("taskharbor.")]
    modules = [*made_in, *(address.module for address in (*addresses, *start, *stop))]
    root = logging.getLogger()
    loggers = {
        name: each for name, each in root.manager.loggerDict.items() if isinstance(each, logging.Logger)
    }
    return Init(
        arguments=sys.argv[1:],
        main=main_module(),
        modules=[name for name in dict.fromkeys(modules) if _is_importable(name)],
        start_hooks=start,
        stop_hooks=stop,
        url=harbor.url,
        levels={"": root.level} | {name: each.level for name, each in loggers.items() if each.level},
    )


def _is_importable(name: str) -> bool:
    return name in MAIN_NAMES or (bool(name) and name in sys.modules)


def refuse_unreachable_hooks(harbor: Harbor) -> None:
    """Raise when the worker starts, not with its first job, if a handler process could not import a hook."""
    if any(task.is_isolated for task in harbor.tasks.values()):
        try:
            init_for(harbor)
        except ConfigurationError as error:
            raise ConfigurationError(
                f'{error} (hooks run in the processes of tasks with isolation="process", too)'
            ) from None
