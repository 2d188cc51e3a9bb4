"""Start a child as an operating-system process, and kill it with everything in its session."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from taskharbor.clock import Clock
from taskharbor.worker.supervisor import shared_memory
from taskharbor.worker.supervisor.channel import Channel, WorkerConfig
from taskharbor.worker.supervisor.child_process import ChildProcess

# On this signal a child writes the stacks of all its threads.
DUMP_SIGNAL: signal.Signals | None = getattr(signal, "SIGUSR2", None)
GONE_SECONDS_MAX = 0.1  # between two checks whether a session is gone
_PROCESSES = Path("/proc")


async def start(command: Sequence[str], clock: Clock, config: WorkerConfig) -> ChildProcess:
    """Start a child in its own session: Ctrl-C in the terminal then reaches only the supervisor, which decides."""
    ours, theirs = socket.socketpair()
    blocks = shared_memory.blocks_for(1 if config.suspects_only else config.concurrency)
    if config.stream is not None:
        blocks *= 2  # for messages, and for their retries
    shared = shared_memory.create(blocks, metrics=config.metrics or config.rollups)
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            str(theirs.fileno()),
            str(shared),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), shared),
            start_new_session=True,
        )
        reader = shared_memory.Reader(shared)
    finally:
        theirs.close()
        os.close(shared)
    channel = await Channel.over(ours)
    channel.send(config)
    return ChildProcess(OsProcess(process), reader, channel, config, clock)


class OsProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.pid = process.pid
        self._process = process

    async def wait(self) -> int:
        return await self._process.wait()

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def dump_stacks(self) -> bool:
        """Signal it; a handler in C writes to standard error, and needs neither the loop nor the GIL."""
        if DUMP_SIGNAL is None:
            return False
        self._signal(DUMP_SIGNAL)
        return True

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        for member in _members(self.pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(member, signal.SIGKILL)

    async def wait_until_gone(self) -> None:
        pause = 0.001
        while not _is_gone(self.pid):
            self.kill()
            await asyncio.sleep(pause)
            pause = min(2 * pause, GONE_SECONDS_MAX)


def _is_gone(leader: int) -> bool:
    if _PROCESSES.joinpath("self/stat").exists():
        return next(_members(leader), None) is None
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # the group id belongs to another user's processes now
        return True
    return False


def _members(leader: int) -> Iterator[int]:
    """List the processes of a session or group where /proc shows them, without zombies: those run nothing."""
    for entry in _PROCESSES.glob("[0-9]*"):
        try:
            # pid (name) state parent group session …; a name may contain any character
            state, _, group, session = entry.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it has just ended
        if leader in (int(group), int(session)) and state not in "ZX":
            yield int(entry.name)
