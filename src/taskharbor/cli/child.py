"""What `taskharbor worker --processes N` starts: a worker of the application, under its supervisor.

    python -m taskharbor.cli.child SOCKET PAGE

Both are descriptors that it has inherited. What to do comes over the socket.
"""

from __future__ import annotations

import faulthandler
import os
import socket
import sys
from typing import TYPE_CHECKING

import click
import msgspec

from taskharbor.cli.entry import EXIT_FAILED, TRACEBACK_VARIABLE, message_of, open_closed_streams
from taskharbor.cli.screen import Screen
from taskharbor.cli.session import Session
from taskharbor.telemetry import logs
from taskharbor.worker.garbage import collecting_less_often
from taskharbor.worker.signals import run_with_signals
from taskharbor.worker.supervisor.channel import Channel, StartupError, WorkerConfig
from taskharbor.worker.supervisor.child_main import Child, address_of, worker_for
from taskharbor.worker.supervisor.os_process import DUMP_SIGNAL
from taskharbor.worker.supervisor.shared_memory import Publisher

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.streams.supervised import SupervisedStream
    from taskharbor.worker.worker import Worker


def main() -> int:
    open_closed_streams()
    if DUMP_SIGNAL is not None:
        faulthandler.register(DUMP_SIGNAL, all_threads=True, chain=False)
    end, page = _inherited(*map(int, sys.argv[1:3]))
    config = _config(end)
    if config is None:
        return EXIT_FAILED
    logs.configure("json" if config.log_format == "json" else "text", config.log_level)
    child: Child | None = None
    try:
        with _open(config) as harbor:
            worker = _worker(harbor, config, page)
            child = Child(worker, page, config, address_of(harbor))
            with collecting_less_often(not config.default_gc):
                run_with_signals(lambda: child.work(lambda: Channel.over(end.dup())), worker)
            return child.status
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE) or (child is not None and child.is_ready):
            raise
        return _refuse(end, error)


def _worker(harbor: Harbor, config: WorkerConfig, page: Publisher) -> Worker | SupervisedStream:
    if config.stream is None:
        return worker_for(harbor, config)
    from taskharbor.streams.supervised import supervised_stream

    return supervised_stream(harbor, config, page)


def _inherited(end: int, page: int) -> tuple[socket.socket, Publisher]:
    """Return what the supervisor shares with this process, but not with the programs that handlers start."""
    os.set_inheritable(end, False)
    publisher = Publisher(page)
    os.close(page)
    return socket.socket(fileno=end), publisher


def _config(end: socket.socket) -> WorkerConfig | None:
    """Read the first line, and nothing after it; return None if the supervisor is gone."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = end.recv(1)
        if not byte:
            return None
        line += byte
    return msgspec.json.decode(bytes(line), type=WorkerConfig)


def _open(config: WorkerConfig) -> Harbor:
    from taskharbor.cli.worker import offer_builtin

    harbor = Session(config.app, config.url, Screen(as_json=False), config.include).open(create=True)
    if config.app is None:
        offer_builtin(harbor)
    return harbor


def _refuse(end: socket.socket, error: Exception) -> int:
    """Report an error that a restart does not fix, so that the supervisor prints it and exits."""
    code, message = EXIT_FAILED, message_of(error)
    if isinstance(error, click.ClickException):
        code, message = error.exit_code, error.format_message()
    end.sendall(msgspec.json.encode(StartupError(message, code)) + b"\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
