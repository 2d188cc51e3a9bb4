"""`taskharbor dev`: works and serves, starts again on a change, and waits while the code cannot be imported."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

APP = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///dev.db")


@harbor.task(name="greet")
async def greet() -> str:
    return {answer!r}
"""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


class Dev:
    """The command, its output line by line, and the application that it watches."""

    def __init__(self, folder: Path) -> None:
        self.app = folder / "app.py"
        self.write("one")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "taskharbor.cli", "dev", "-A", "app:harbor", "--port", "0"],
            cwd=folder, stderr=subprocess.PIPE, text=True, env={**os.environ},
        )  # fmt: skip

    def write(self, answer: str) -> None:
        self.app.write_text(APP.format(answer=answer))

    def until(self, pattern: str) -> str:
        assert self.process.stderr is not None
        seen = []
        for line in self.process.stderr:
            seen.append(line)
            if found := re.search(pattern, line):
                return found[found.re.groups]
        raise AssertionError(f"it ended before it wrote {pattern}: {seen}")

    def result(self, address: str) -> object:
        """Enqueue a job, and return what its handler returned."""
        with httpx.Client(base_url=f"{address}/api/v1", timeout=60) as client:
            job = client.post("/jobs", json={"task": "greet"}).raise_for_status().json()
            while job["state"] not in ("succeeded", "dead"):
                job = client.get(f"/jobs/{job['id']}").raise_for_status().json()
            return job["result"]


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    dev = Dev(tmp_path)
    yield dev
    dev.process.kill()
    dev.process.wait()
    assert dev.process.stderr is not None
    dev.process.stderr.close()


@pytest.mark.timeout(240)
def test_dev_ends_when_its_port_is_in_use(tmp_path: Path):
    (tmp_path / "app.py").write_text(APP.format(answer="one"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = subprocess.run(
            [sys.executable, "-m", "taskharbor.cli", "dev", "-A", "app:harbor", "--port", str(port)],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert ended.returncode == 1
    assert f"Error: 127.0.0.1:{port} cannot be listened on; choose another port with --port" in ended.stderr
    assert "starts again" not in ended.stderr


@pytest.mark.timeout(240)
def test_dev_works_serves_and_starts_again_with_the_changed_code(dev: Dev):
    address = dev.until(r"serving on (\S+),")
    assert dev.result(address) == "one"
    assert httpx.get(address).status_code == 200
    dev.write("this is the second version")
    dev.until(r"app\.py changed: starting again")
    assert dev.result(dev.until(r"serving on (\S+),")) == "this is the second version"
    dev.app.write_text("this is no Python at all")
    dev.until(r"it ended; it starts again when the code changes")
    dev.write("the third")
    assert dev.result(dev.until(r"serving on (\S+),")) == "the third"
    dev.process.send_signal(signal.SIGTERM)
    assert dev.process.wait(60) == 0
