"""The messages between a supervisor and a child: one JSON document per line, over a pair of sockets.

The supervisor sends the first message, `WorkerConfig`. It is not on the command line because the store's URL may
contain a password. When one side exits, the other reads the end of the stream.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from msgspec import Struct

from taskharbor.drivers.contract.reading import StreamPresence, WorkerVitals
from taskharbor.telemetry.events import Event

LINE_MAX = 16 * 1024 * 1024
NO_RETRIES = "none"
UNREAD_MAX = (
    1024 * 1024
)  # bytes that wait for a child which does not read; later heartbeats repeat what it missed


class LostMessage(Struct):
    """A message of a log that a process had begun when it died."""

    job: str  # the id of the job that it becomes
    worker: str
    how: str  # "was killed by SIGKILL"
    started_at: int


class WorkerConfig(Struct, tag=True, omit_defaults=True):
    """To the child: how to work. It only names the application; the supervisor never imports it."""

    app: str | None
    url: str | None
    queues: list[str] | None
    concurrency: int
    lease_seconds: float
    grace_seconds: float
    log_format: str
    log_level: str
    liveness_seconds: float = 1.0  # how often to show a sign of life
    drain: bool = False
    suspects_only: bool = False
    may_retire: bool = True  # False while its predecessor still runs
    max_jobs: int | None = None
    max_memory_mib: int | None = None
    unresponsive_seconds: float | None = None
    handler_max_jobs: int | None = None
    retry: str | None = None  # the name of a preset, or NO_RETRIES; None for the application's policy
    log_tracebacks: bool = True
    include: list[str] = []  # modules with further tasks of the application
    max_attempts: int | None = None  # replaces that policy's own cap
    default_gc: bool = False  # collect garbage as often as Python does by default
    metrics: bool = (
        False  # count what happens to jobs; a child counts in memory that it shares with the supervisor
    )
    rollups: bool = True  # write what was counted into the store's roll-ups
    stream: dict[str, Any] | None = None  # the options of a StreamWorker; None for a worker of the store
    member: str | None = None  # the name of this slot as a member of the stream's group
    lost_messages: list[LostMessage] = []  # that earlier processes had begun when they died


class LeaseUpdate(Struct, tag=True, omit_defaults=True):
    """To the child: what the store answered when its leases were extended."""

    cancel_requested: list[str] = []
    paused: list[str] = []
    holds: list[str] = []  # labels of the holds in force
    refused: list[str] = []


class EventMessage(Struct, tag=True):
    """To a child: an event for the application's subscribers."""

    event: Event


class MayRetire(Struct, tag=True):
    """To a child: its predecessor is gone."""


class MessagesLost(Struct, tag=True):
    """To a child that reads a stream: messages that another process had begun when it died."""

    messages: list[LostMessage]


class Hello(Struct, tag=True, omit_defaults=True):
    """From the child: its name and its store. Without an address it extends its leases itself."""

    worker: str
    prefix: str
    address: str | None = None


class Waiting(Struct, tag=True):
    """From the child: it is not ready yet, because the store does not answer."""


class Ready(Struct, tag=True, omit_defaults=True):
    """From the child: its start hooks are done, it begins to claim."""

    tasks: list[str] | None = None  # that it knows; None: too many to tell
    version: str | None = None  # of its application


class StreamReport(Struct, tag=True):
    """From a child that reads a stream: its partitions, and how far it is behind."""

    stream: StreamPresence


class Vitals(Struct, tag=True):
    """From the child, every ten seconds: its memory, and how late its event loop ran."""

    vitals: WorkerVitals


class StartupError(Struct, tag=True):
    """From the child: it cannot start with this configuration, and a retry would not help."""

    message: str
    code: int


class SuspectsWaiting(Struct, tag=True):
    """From the child: there is a suspect, which has to run alone."""


class Retiring(Struct, tag=True):
    """From the child: it claims no more, and exits when its last job has ended."""

    why: str
    idle: bool  # it has not begun any job


class Drained(Struct, tag=True):
    """From a child that retires: its last job is settled."""


Message = (
    WorkerConfig
    | LeaseUpdate
    | EventMessage
    | MayRetire
    | MessagesLost
    | Hello
    | Waiting
    | Ready
    | StreamReport
    | Vitals
    | StartupError
    | SuspectsWaiting
    | Retiring
    | Drained
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Message).decode


class Channel:
    """One end of the connection, on the running loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        reader, writer = await asyncio.open_connection(sock=end, limit=LINE_MAX)
        return cls(reader, writer)

    def send(self, message: Message) -> bool:
        """Send without waiting; return False if the other side is gone or too far behind."""
        if self._writer.is_closing() or self._writer.transport.get_write_buffer_size() > UNREAD_MAX:
            return False
        self._writer.write(_encode(message) + b"\n")
        return True

    async def messages(self) -> AsyncIterator[Message]:
        """Yield messages until the other side is gone."""
        while True:
            try:
                line = await self._reader.readline()
            except (ConnectionError, ValueError):
                return
            if not line.endswith(b"\n"):
                return
            yield _decode(line)

    async def flush(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        self._writer.close()
