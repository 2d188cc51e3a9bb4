"""The handler process's connection to its worker, and the log lines that it carries."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import NoReturn

from taskharbor.worker.handlers.isolation.messages import (
    Frames,
    FromProcess,
    Logged,
    ToProcess,
    frame,
    read_to_process,
)

READ_BYTES = 256 * 1024
LOG_TEXT_MAX = 100_000  # characters of one log line


class Link:
    """The connection to the worker. Any thread may send; one receives."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)  # a process that a handler starts must not keep it open
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._close_in_fork)

    def send(self, message: FromProcess) -> None:
        data = frame(message)
        try:
            with self._lock:
                self._socket.sendall(data)
        except OSError:
            kill_own_group()

    def receive(self) -> Iterator[ToProcess]:
        frames = Frames()
        while True:
            try:
                data = self._socket.recv(READ_BYTES)
            except OSError:
                return
            if not data:
                return
            for body in frames.feed(data):
                yield read_to_process(body)

    def _close_in_fork(self) -> None:
        """Close the connection in a fork that a handler made: it must not send to the worker."""
        self._lock = threading.Lock()
        self._socket.close()


def kill_own_group() -> NoReturn:
    """Kill this process and everything it has started: the worker is gone, and no one waits for the handler."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)  # reached only if this process was moved into a group that it may not kill


class LogsToWorker(logging.Handler):
    """Sends log lines to the worker, which writes them by its own configuration."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self._process = os.getpid()
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        if os.getpid() != self._process:
            return  # in a fork
        try:
            logged = self._logged(record)
        except Exception:  # noqa: BLE001 - logging handlers report such a line instead of raising
            self.handleError(record)
            return
        self._link.send(logged)

    def _logged(self, record: logging.LogRecord) -> Logged:
        traceback = record.exc_text
        if traceback is None and record.exc_info:
            traceback = self._formatter.formatException(record.exc_info)
        fields = getattr(record, "fields", None)
        return Logged(
            logger=record.name,
            level=record.levelno,
            message=_safe(record.getMessage()),
            created=record.created,
            path=record.pathname,
            line=record.lineno,
            function=record.funcName,
            thread=record.threadName,
            process=record.process,
            traceback=None if traceback is None else _safe(traceback),
            fields={_safe(str(name)): _plain(value) for name, value in fields.items()}
            if isinstance(fields, dict)
            else None,
        )


def _plain(value: object) -> object:
    if isinstance(value, bool | float | None) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    return _safe(str(value))


def _safe(text: str) -> str:
    """Return the text as valid UTF-8, cut to LOG_TEXT_MAX."""
    return text[:LOG_TEXT_MAX].encode(errors="backslashreplace").decode()
