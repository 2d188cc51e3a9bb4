"""Health of a worker or a supervisor, for what runs it: systemd, a container's probe, a load balancer."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from taskharbor.errors import ConfigurationError
from taskharbor.own_tasks import own_task, result_of
from taskharbor.telemetry.logs import log_line

if TYPE_CHECKING:
    from taskharbor.worker.worker import Worker

logger = logging.getLogger("taskharbor.supervisor")

REFRESH_SECONDS = 1.0
REQUEST_MAX = 8_192  # bytes of a request that are read
REQUEST_SECONDS = 5.0


class Health(Struct, frozen=True):
    ok: bool
    detail: str


Look = Callable[[], Health]


class Signs:
    """All that a process tells the outside of how it is: a file, a port, and systemd where that started it."""

    def __init__(self, look: Look, file: Path | None, address: tuple[str, int] | None) -> None:
        self._look = look
        self._file = file
        self._address = address
        self._systemd = Systemd.from_environment(look)

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """One for each sign; none of them ends by itself."""
        signs: list[Coroutine[Any, Any, None]] = []
        if self._file is not None:
            signs.append(HealthFile(self._file, self._look).run())
        if self._address is not None:
            signs.append(HealthPort(*self._address, self._look).run())
        if self._systemd is not None:
            signs.append(self._systemd.run())
        return signs

    def stopping(self) -> None:
        if self._systemd is not None:
            self._systemd.stopping()


async def work_with_signs(
    worker: Worker, work: Callable[[], Coroutine[Any, Any, None]], signs: Signs
) -> None:
    """Let a worker work, and tell the outside meanwhile; a sign that cannot be given ends the worker."""
    await result_of(own_task(_work_with_signs(worker, work, signs)))


async def _work_with_signs(
    worker: Worker, work: Callable[[], Coroutine[Any, Any, None]], signs: Signs
) -> None:
    working = own_task(work())
    giving = [own_task(sign) for sign in signs.runs()]
    worker._on_stop = signs.stopping
    try:
        await asyncio.wait([working, *giving], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            worker.stop()
            worker.stop()  # at once: it has hardly begun
        await asyncio.wait([working])
        for ended in (*(sign for sign in giving if sign.done()), working):
            ended.result()
    finally:
        for each in (working, *giving):
            each.end()
        await asyncio.wait([working, *giving])


def health_of(worker: Worker) -> Health:
    """Well is a worker that works, or waits for a store that is away. That its loop goes round, the answer shows."""
    phase = worker._phase
    return Health(phase in ("at work", "waiting for the store"), f"the worker is {phase}")


class HealthFile:
    """A file that is touched while all is well, and gone when the process is: a probe looks at its age.

    It may lie in a folder that others can write to, /tmp say. What they put in its place is left alone.
    """

    def __init__(self, path: Path, look: Look) -> None:
        self._path = path
        self._look = look

    async def run(self) -> None:
        # A file that cannot be written stops the start, and does not look fresh before all is well.
        touch_itself(self._path, (0, 0))
        try:
            while True:
                self._refresh()
                await asyncio.sleep(REFRESH_SECONDS)
        finally:
            self._path.unlink(missing_ok=True)

    def _refresh(self) -> None:
        try:
            if self._look().ok:
                touch_itself(self._path)
        except (
            OSError,
            ConfigurationError,
        ) as error:  # a full disk, say: the file grows old, and a probe sees that
            log_line(
                logger, logging.WARNING, "the health file cannot be written: {error}", {"error": str(error)}
            )


def touch_itself(path: Path, times: tuple[int, int] | None = None) -> None:
    """Make the file or set its times, now by default; refuse whatever is no regular file, a symbolic link above all."""
    try:
        # O_NONBLOCK: opening a named pipe would wait for a reader.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    except OSError as error:
        if path.is_symlink():
            raise _not_a_file(path, "a symbolic link") from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _not_a_file(path, "a device or a pipe")
        os.utime(descriptor, times)
    finally:
        os.close(descriptor)


def _not_a_file(path: Path, what: str) -> ConfigurationError:
    return ConfigurationError(f"the health file {path} is {what}, and was left alone; name a file of its own")


class HealthPort:
    """HTTP, as little of it as a probe needs: 200 while all is well, else 503, and one line that says why."""

    def __init__(self, host: str, port: int, look: Look) -> None:
        self._host = host
        self._port = port
        self._look = look

    async def run(self) -> None:
        try:
            server = await asyncio.start_server(self._answer, self._host, self._port, limit=REQUEST_MAX)
        except OSError as error:
            raise ConfigurationError(
                f"no health port at {self._host}:{self._port}: {error.strerror or error}; name another one"
            ) from None
        async with server:
            await server.serve_forever()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(request.split(b" ", 1)[0]))
                await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asks so badly gets no answer
        finally:
            writer.close()

    def _response(self, method: bytes) -> bytes:
        health = self._look()
        body = f"{health.detail}\n".encode()
        status = "200 OK" if health.ok else "503 Service Unavailable"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        )
        return f"{head}Connection: close\r\n\r\n".encode() + (b"" if method == b"HEAD" else body)


class Systemd:
    """systemd's notify protocol: datagrams to the socket that $NOTIFY_SOCKET names."""

    def __init__(self, address: str, watchdog_seconds: float | None, look: Look) -> None:
        # An address that begins with @ is in the kernel's own name space.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_seconds = watchdog_seconds
        self._look = look

    @classmethod
    def from_environment(cls, look: Look) -> Systemd | None:
        address = os.environ.get("NOTIFY_SOCKET")
        if not address:
            return None
        micros, meant = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
        watched = micros.isdigit() and int(micros) > 0 and meant in (None, str(os.getpid()))
        return cls(address, int(micros) / 1_000_000 if watched else None, look)

    async def run(self) -> None:
        """READY=1 when all is well for the first time; from then on a sign of life, while it is."""
        is_ready = False
        pause = (
            REFRESH_SECONDS
            if self._watchdog_seconds is None
            else min(REFRESH_SECONDS, self._watchdog_seconds / 3)
        )
        told_at, told = 0.0, ""
        while True:
            health = self._look()
            if health.ok and not is_ready:
                is_ready = True
                self._tell("READY=1")
            if health.detail != told and time.monotonic() - told_at >= REFRESH_SECONDS:
                told_at, told = time.monotonic(), health.detail
                self._tell(f"STATUS={health.detail}")
            if health.ok and self._watchdog_seconds is not None:
                self._tell("WATCHDOG=1")
            await asyncio.sleep(pause)

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def _tell(self, words: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(words.encode(), self._address)
        except OSError as error:
            log_line(logger, logging.WARNING, "systemd cannot be told: {error}", {"error": str(error)})
