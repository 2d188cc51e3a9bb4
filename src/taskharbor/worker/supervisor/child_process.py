"""One child as its supervisor holds it: its body, its page and its channel, and what is known about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from taskharbor.clock import Clock
from taskharbor.worker.supervisor import shared_memory
from taskharbor.worker.supervisor.channel import Channel, Hello, MayRetire, StartupError, WorkerConfig


class ProcessHandle(Protocol):
    """What can be done to a child from outside."""

    @property
    def pid(self) -> int: ...

    async def wait(self) -> int:
        """Until its process has ended; with its status, negative for a signal."""

    def terminate(self) -> None:
        """Ask it to shut down."""

    def dump_stacks(self) -> bool:
        """Let it write what all its threads do, whatever state it is in; False if it cannot."""

    def kill(self) -> None:
        """It and everything that it has started in its session."""

    async def gone(self) -> None:
        """Until no process of its session is left: only then may its jobs begin elsewhere."""


class ChildProcess:
    def __init__(
        self,
        body: ProcessHandle,
        reader: shared_memory.Reader,
        channel: Channel,
        orders: WorkerConfig,
        clock: Clock,
    ) -> None:
        self.pid = body.pid
        self.shared_memory = reader
        self.channel = channel
        self.started = self.seen_alive = clock.monotonic()
        self.hello: Hello | None = None
        self.refusal: StartupError | None = None
        self.is_ready = False
        self.waits_for_store = False  # before it is ready
        self.is_over = False  # the process has ended; what it left is not settled yet
        self.suspects_only = orders.suspects_only
        self.left_idle = False  # it retired before it had begun any job
        self.retiring = asyncio.Event()  # it claims no more, and ends with the last of its jobs
        self.leave_by: float | None = None  # its last job is settled; after this moment it is made to end
        self.stuck_seconds: float | None = None  # it was ended because it showed no sign of life for so long
        self.interrupted = False  # it was ended because it did not stop within the grace
        self._body = body
        self._life = 0

    @property
    def name(self) -> str:
        return self.hello.worker if self.hello is not None else f"process {self.pid}"

    def token(self, held: shared_memory.Held) -> str:
        assert self.hello is not None, "who holds a lease has said hello"
        return f"{self.hello.prefix}-{held.serial}"

    async def wait(self) -> int:
        status = await self._body.wait()
        self.is_over = True
        return status

    # -- signs of life --

    def silent_seconds(self, now: float) -> float:
        """For how long it has shown no sign of life."""
        life = self.shared_memory.life
        if life != self._life:
            self._life, self.seen_alive = life, now
        return now - self.seen_alive

    # -- ending it --

    def may_retire(self) -> None:
        self.channel.send(MayRetire())

    def terminate(self) -> None:
        self._body.terminate()

    def dump_stacks(self) -> bool:
        return self.is_ready and self._body.dump_stacks()

    def kill(self) -> None:
        self._body.kill()

    async def gone(self) -> None:
        await self._body.gone()

    def close(self) -> None:
        self.channel.close()
        self.shared_memory.close()


StartChild = Callable[[WorkerConfig], Awaitable[ChildProcess]]  # that has not said anything yet
