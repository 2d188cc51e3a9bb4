"""One child as the supervisor sees it: its process, shared memory and channel, and what is known about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from taskharbor.clock import Clock
from taskharbor.drivers.contract.reading import StreamPresence, WorkerVitals
from taskharbor.worker.supervisor import shared_memory
from taskharbor.worker.supervisor.channel import (
    Channel,
    Hello,
    LostMessage,
    MayRetire,
    StartupError,
    WorkerConfig,
)


class ProcessHandle(Protocol):
    """The operating-system process of a child, with everything in its session."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Wait for the process to exit; return its status, negative for a signal."""

    def terminate(self) -> None:
        """Ask it to shut down."""

    def dump_stacks(self) -> bool:
        """Make it write the stacks of all its threads, whatever state it is in; False if it cannot."""

    def kill(self) -> None:
        """Kill it and everything that it has started in its session."""

    async def wait_until_gone(self) -> None:
        """Wait until no process of its session is left: only then may its jobs begin elsewhere."""


class ChildProcess:
    def __init__(
        self,
        process: ProcessHandle,
        reader: shared_memory.Reader,
        channel: Channel,
        config: WorkerConfig,
        clock: Clock,
    ) -> None:
        self.pid = process.pid
        self.shared_memory = reader
        self.channel = channel
        self.started = self.last_alive_at = clock.monotonic()
        self.hello: Hello | None = None
        self.startup_error: StartupError | None = None
        self.is_ready = False
        self.tasks: tuple[str, ...] | None = None  # that it knows, once it is ready; None: not known
        self.stream: StreamPresence | None = None  # what it reads, if it reads a topic
        self.version: str | None = None  # of its application, once it is ready
        self.vitals: WorkerVitals | None = None
        self.waits_for_store = False  # before it is ready
        self.has_exited = False  # its jobs may not be settled yet
        self.suspects_only = config.suspects_only
        self.retired_idle = False  # it retired before it had begun any job
        self.retiring = asyncio.Event()  # it claims no more, and exits when its last job has ended
        self.exit_deadline: float | None = (
            None  # set when its last job is settled; the supervisor kills it then
        )
        self.stuck_seconds: float | None = None  # killed after this time without a sign of life
        self.interrupted = False  # killed because it did not stop within the grace period
        self._process = process
        self._alive_count = 0

    @property
    def name(self) -> str:
        return self.hello.worker if self.hello is not None else f"process {self.pid}"

    def token(self, lease: shared_memory.PublishedLease) -> str:
        assert self.hello is not None, "a child says hello before it claims"
        return f"{self.hello.prefix}-{lease.serial}"

    async def wait(self) -> int:
        status = await self._process.wait()
        self.has_exited = True
        return status

    def silent_seconds(self, now: float) -> float:
        """Return the time since its last sign of life."""
        count = self.shared_memory.alive_count
        if count != self._alive_count:
            self._alive_count, self.last_alive_at = count, now
        return now - self.last_alive_at

    def lost_messages(self, how: str) -> list[LostMessage]:
        """Return the messages of a stream that it had begun when it died."""
        running = self.shared_memory.running_messages()
        return [LostMessage(job, self.name, how, at) for job, at in running.items()]

    # -- what the supervisor does to it --

    def allow_retirement(self) -> None:
        self.channel.send(MayRetire())

    def terminate(self) -> None:
        self._process.terminate()

    def dump_stacks(self) -> bool:
        return self.is_ready and self._process.dump_stacks()

    def kill(self) -> None:
        self._process.kill()

    async def wait_until_gone(self) -> None:
        await self._process.wait_until_gone()

    def close(self) -> None:
        self.channel.close()
        self.shared_memory.close()


StartChild = Callable[[WorkerConfig], Awaitable[ChildProcess]]
