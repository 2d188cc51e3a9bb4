"""The dashboard behind a real server: its stream of changes under ASGI, as a browser reads it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.django.environments import Project
from tools.loopback import free_port


def test_page_hears_of_a_new_job_under_asgi(project: Project) -> None:
    project.manage("migrate")
    with _served(project) as address, httpx.stream("GET", f"{address}/open/live", timeout=60) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        next(lines)  # the stream is open: what comes from here on is heard
        code = "import django; django.setup(); from shop import tasks; tasks.add.enqueue(1)"
        assert project.run("-c", code, DJANGO_SETTINGS_MODULE="shop.settings").returncode == 0
        assert any(line == "event: change" for line in lines)


@contextmanager
def _served(project: Project) -> Iterator[str]:
    port = free_port()
    command = ("-m", "uvicorn", "shop.asgi:application", "--port", str(port), "--log-level", "error")
    server = project.start(*command, start_new_session=True, stderr=subprocess.PIPE)
    try:
        _wait_for(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.communicate()


def _wait_for(port: int, server: subprocess.Popen[str]) -> None:
    give_up_at = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert server.poll() is None
            assert time.monotonic() < give_up_at, "the server did not start"
            time.sleep(0.02)
