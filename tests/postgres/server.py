"""The server of a test run: the one that `tools` starts, quick rather than durable."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tools import postgres_server
from tools.loopback import free_port
from tools.postgres_server import DURABLE, Server

__all__ = ["DURABLE", "QUICK", "Server", "free_port", "running"]

# No test of ours pulls the plug: kill -9 of a server loses nothing that the operating system has.
QUICK = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "on"}


@contextmanager
def running(settings: dict[str, str] = QUICK, *, method: str = "trust") -> Iterator[Server]:
    with postgres_server.running(settings, method=method) as server:
        yield server
