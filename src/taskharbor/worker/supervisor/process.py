"""One child as its supervisor holds it: the process with its whole group, its page and its channel."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from taskharbor.worker.supervisor import page
from taskharbor.worker.supervisor.channel import Channel, Hello, Orders, Refusal

DUMP_SIGNAL: signal.Signals | None = getattr(
    signal, "SIGUSR2", None
)  # a child writes the stacks of all its threads
GONE_SECONDS_MAX = 0.1  # between two looks at a group that is to be gone
_PROCESSES = Path("/proc")


class ChildProcess:
    def __init__(self, process: asyncio.subprocess.Process, reader: page.Reader, channel: Channel) -> None:
        self.pid = process.pid
        self.page = reader
        self.channel = channel
        self.started = self.seen_alive = time.monotonic()
        self.hello: Hello | None = None
        self.refusal: Refusal | None = None
        self.is_ready = False
        self.is_over = False  # the process has ended; what it left is not settled yet
        self.suspects_only = False
        self.left_idle = False  # it ended by itself before it had begun any job
        self.leave_by: float | None = None  # it ends by itself; after this moment it is made to
        self.stuck_seconds: float | None = None  # it was ended because it showed no sign of life for so long
        self.interrupted = False  # it was ended because it did not stop within the grace
        self._process = process
        self._life = 0

    @classmethod
    async def start(cls, command: Sequence[str], orders: Orders) -> ChildProcess:
        """In a session of its own: a Ctrl-C in the terminal reaches the supervisor alone, which then decides."""
        ours, theirs = socket.socketpair()
        shared = page.create(page.blocks_for(1 if orders.suspects_only else orders.concurrency))
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs.fileno()),
                str(shared),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), shared),
                start_new_session=True,
            )
            reader = page.Reader(shared)
        finally:
            theirs.close()
            os.close(shared)
        channel = await Channel.over(ours)
        channel.send(orders)
        child = cls(process, reader, channel)
        child.suspects_only = orders.suspects_only
        return child

    @property
    def name(self) -> str:
        return self.hello.worker if self.hello is not None else f"process {self.pid}"

    def token(self, held: page.Held) -> str:
        assert self.hello is not None, "who holds a lease has said hello"
        return f"{self.hello.prefix}-{held.serial}"

    async def wait(self) -> int:
        status = await self._process.wait()
        self.is_over = True
        return status

    # -- signs of life --

    def silent_seconds(self, now: float) -> float:
        """For how long it has shown no sign of life."""
        life = self.page.life
        if life != self._life:
            self._life, self.seen_alive = life, now
        return now - self.seen_alive

    # -- ending it --

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def dump_stacks(self) -> bool:
        """To its standard error; written by a signal handler in C, which needs neither the loop nor the GIL."""
        if DUMP_SIGNAL is None or not self.is_ready:
            return False
        self._signal(DUMP_SIGNAL)
        return True

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """It and everything that it has started in its session."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for member in _members(self.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)

    async def gone(self) -> None:
        """Until no process of its session is left: only then may its jobs begin elsewhere."""
        pause = 0.001
        while not _is_gone(self.pid):
            self.kill()
            await asyncio.sleep(pause)
            pause = min(2 * pause, GONE_SECONDS_MAX)

    def close(self) -> None:
        self.channel.close()
        self.page.close()


def _is_gone(leader: int) -> bool:
    if _PROCESSES.joinpath("self/stat").exists():
        return next(_members(leader), None) is None
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # there is somebody, though not one of ours any more
        return True
    return False


def _members(leader: int) -> Iterator[int]:
    """The living processes of a session or group, where the system lists them. A zombie runs nothing."""
    for entry in _PROCESSES.glob("[0-9]*"):
        try:
            # pid (name) state parent group session …, and a name may hold anything
            state, _, group, session = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # gone meanwhile
        if leader in (int(group), int(session)) and state not in "ZX":
            yield int(entry.name)
