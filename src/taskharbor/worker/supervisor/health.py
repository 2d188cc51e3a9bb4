"""Report the health of a worker or a supervisor to systemd, a container's probe or a load balancer."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from taskharbor.errors import ConfigurationError
from taskharbor.own_tasks import own_task, result_of
from taskharbor.telemetry.logs import log_line

if TYPE_CHECKING:
    pass

logger = logging.getLogger("taskharbor.supervisor")

REFRESH_SECONDS = 1.0
REQUEST_MAX = 8_192  # bytes of a request that are read
REQUEST_SECONDS = 5.0


class Health(Struct, frozen=True):
    ok: bool
    detail: str


CheckHealth = Callable[[], Health]


class HealthReports:
    """All ways in which a process reports its health: a file, a port, and systemd if that started it."""

    def __init__(self, check: CheckHealth, file: Path | None, address: tuple[str, int] | None) -> None:
        self._check = check
        self._file = file
        self._address = address
        self._systemd = Systemd.from_environment(check)

    def runs(self) -> list[Coroutine[Any, Any, None]]:
        """Return one coroutine for each report; none of them ends by itself."""
        reports: list[Coroutine[Any, Any, None]] = []
        if self._file is not None:
            reports.append(HealthFile(self._file, self._check).run())
        if self._address is not None:
            reports.append(HealthPort(*self._address, self._check).run())
        if self._systemd is not None:
            reports.append(self._systemd.run())
        return reports

    def stopping(self) -> None:
        if self._systemd is not None:
            self._systemd.stopping()


class ReportingWorker(Protocol):
    """What health reports need of a worker."""

    _on_stop: Callable[[], None] | None

    @property
    def _phase(self) -> str: ...
    def stop(self) -> None: ...


async def work_with_health_reports(
    worker: ReportingWorker, work: Callable[[], Coroutine[Any, Any, None]], reports: HealthReports
) -> None:
    """Run a worker and report its health; a report that fails ends the worker."""
    await result_of(own_task(_work_with_health_reports(worker, work, reports)))


async def _work_with_health_reports(
    worker: ReportingWorker, work: Callable[[], Coroutine[Any, Any, None]], reports: HealthReports
) -> None:
    working = own_task(work())
    reporting = [own_task(report) for report in reports.runs()]
    worker._on_stop = reports.stopping
    try:
        await asyncio.wait([working, *reporting], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            worker.stop()
            worker.stop()  # at once: a report fails right after the start
        await asyncio.wait([working])
        for ended in (*(report for report in reporting if report.done()), working):
            ended.result()
    finally:
        for each in (working, *reporting):
            each.end()
        await asyncio.wait([working, *reporting])


def health_of(worker: ReportingWorker) -> Health:
    """Healthy while the worker works or waits for the store. A blocked loop would not answer at all."""
    phase = worker._phase
    return Health(phase in ("at work", "waiting for the store"), f"the worker is {phase}")


class HealthFile:
    """A file that a healthy process touches, and removes when it exits: a probe checks its age.

    It may be in a folder that other users can write to, such as /tmp: a link or device they put there is not touched.
    """

    def __init__(self, path: Path, check: CheckHealth) -> None:
        self._path = path
        self._check = check

    async def run(self) -> None:
        # A file that cannot be written is an error at the start; its age of decades means "not healthy yet".
        touch_regular_file(self._path, (0, 0))
        try:
            while True:
                self._refresh()
                await asyncio.sleep(REFRESH_SECONDS)
        finally:
            self._path.unlink(missing_ok=True)

    def _refresh(self) -> None:
        try:
            if self._check().ok:
                touch_regular_file(self._path)
        except (OSError, ConfigurationError) as error:  # the file grows old, which a probe sees
            log_line(
                logger, logging.WARNING, "the health file cannot be written: {error}", {"error": str(error)}
            )


def touch_regular_file(path: Path, times: tuple[int, int] | None = None) -> None:
    """Create the file or set its times, by default to now. Refuse a symbolic link, a device or a pipe."""
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
    return ConfigurationError(
        f"the health file {path} is {what}; name a regular file, or one that does not exist"
    )


class HealthPort:
    """As much HTTP as a probe needs: 200 while healthy, else 503, and one line that says why."""

    def __init__(self, host: str, port: int, check: CheckHealth) -> None:
        self._host = host
        self._port = port
        self._check = check

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
            pass  # a malformed or slow request gets no answer
        finally:
            writer.close()

    def _response(self, method: bytes) -> bytes:
        health = self._check()
        body = f"{health.detail}\n".encode()
        status = "200 OK" if health.ok else "503 Service Unavailable"
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        )
        return f"{head}Connection: close\r\n\r\n".encode() + (b"" if method == b"HEAD" else body)


class Systemd:
    """systemd's notify protocol: datagrams to the socket that $NOTIFY_SOCKET names."""

    def __init__(self, address: str, watchdog_seconds: float | None, check: CheckHealth) -> None:
        # A leading @ means Linux's abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._watchdog_seconds = watchdog_seconds
        self._check = check

    @classmethod
    def from_environment(cls, check: CheckHealth) -> Systemd | None:
        address = os.environ.get("NOTIFY_SOCKET")
        if not address:
            return None
        micros, watched_pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
        is_watched = micros.isdigit() and int(micros) > 0 and watched_pid in (None, str(os.getpid()))
        return cls(address, int(micros) / 1_000_000 if is_watched else None, check)

    async def run(self) -> None:
        """Send READY=1 once healthy, STATUS when it changes, and WATCHDOG=1 regularly while healthy."""
        is_ready = False
        pause = (
            REFRESH_SECONDS
            if self._watchdog_seconds is None
            else min(REFRESH_SECONDS, self._watchdog_seconds / 3)
        )
        sent_at, sent = 0.0, ""
        while True:
            health = self._check()
            if health.ok and not is_ready:
                is_ready = True
                self._notify("READY=1")
            if health.detail != sent and time.monotonic() - sent_at >= REFRESH_SECONDS:
                sent_at, sent = time.monotonic(), health.detail
                self._notify(f"STATUS={health.detail}")
            if health.ok and self._watchdog_seconds is not None:
                self._notify("WATCHDOG=1")
            await asyncio.sleep(pause)

    def stopping(self) -> None:
        self._notify("STOPPING=1")

    def _notify(self, state: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode(), self._address)
        except OSError as error:
            log_line(logger, logging.WARNING, "cannot notify systemd: {error}", {"error": str(error)})
