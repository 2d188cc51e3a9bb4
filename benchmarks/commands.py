"""TaskHarbor's commands as an operator starts them: the worker with and without a supervisor, and the REST server.

Other libraries have no such commands, and the report shows a dash for them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contestant import check_all_ran
from benchmarks.processes import end_with_parent

if TYPE_CHECKING:
    from benchmarks.measures import Arena, Figures

APPLICATION = "benchmarks.application"
SERVING = re.compile(r"serving on http://([\d.]+):(\d+)")
WARM_UP_REQUESTS = 20
RECOVERY_LEASE_SECONDS = 5
RECOVERY_SECONDS_MAX = 60.0
BODY = json.dumps({"task": "noop", "payload": {}}).encode()
REQUEST = (
    b"POST /api/v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n" % len(BODY)
) + BODY


def supervised(arena: Arena) -> Figures:
    """The same drain by `taskharbor worker`: alone, and with a supervisor over one process and over two."""
    ways = {
        "command_drain": (),
        "supervised_drain": ("--processes", "1"),
        "supervised_drain_2": ("--processes", "2"),
    }
    url = arena.contestant.store_url()
    if url is None:
        return dict.fromkeys(ways)
    figures: Figures = {}
    for figure, options in ways.items():
        arena.contestant.fill(arena.settings.jobs)
        report = arena.directory / f"{figure}.jsonl"
        with worker(url, "--drain", *options, report=report) as process:
            if process.wait(arena.settings.timeout_seconds):
                raise RuntimeError(f"`taskharbor worker` ended with {process.returncode}")
        figures[figure] = reported_rate(report, arena.settings.jobs)
    return figures


def reported_rate(report: Path, expected: int) -> float:
    """Handlers a second between the first and the last: how long interpreters take to start is not measured."""
    lines: list[tuple[int, float, float]] = [
        json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()
    ]
    check_all_ran(sum(ran for ran, _, _ in lines), expected)
    return (expected - 1) / (max(last for _, _, last in lines) - min(first for _, first, _ in lines))


def recovery(arena: Arena) -> Figures:
    """A worker process is killed in the middle of a job: seconds until that job begins again."""
    url = arena.contestant.store_url()
    if url is None:
        return {"recovery_supervised": None, "recovery_lease": None}
    lease = ("--lease-seconds", str(RECOVERY_LEASE_SECONDS))
    with worker(url, "--processes", "2"):
        supervised = killed_and_begun_again(url, arena.directory / "supervised.jsonl")
    with worker(url, *lease), worker(url, *lease):
        unsupervised = killed_and_begun_again(url, arena.directory / "unsupervised.jsonl")
    return {"recovery_supervised": supervised, "recovery_lease": unsupervised}


def killed_and_begun_again(url: str, begins: Path) -> float:
    from taskharbor import Harbor  # not at the top: it would weigh on the memory of every peer

    with Harbor(url) as harbor:
        harbor.enqueue("hold", {"file": str(begins)})
        [[pid, _]] = wait_for_lines(begins, 1)
        os.kill(pid, signal.SIGKILL)
        killed_at = time.monotonic()
        _, [_, begun_at] = wait_for_lines(begins, 2)
        return begun_at - killed_at


def wait_for_lines(file: Path, count: int) -> list[tuple[int, float]]:
    give_up_at = time.monotonic() + RECOVERY_SECONDS_MAX
    while time.monotonic() < give_up_at:
        lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
        if len(lines) >= count:
            return [json.loads(line) for line in lines]
        time.sleep(0.002)
    raise TimeoutError(f"the job did not begin within {RECOVERY_SECONDS_MAX:.0f} s")


def rest(arena: Arena) -> Figures:
    """Jobs enqueued by `POST /jobs`: over one connection that is kept alive, and over many at once."""
    url = arena.contestant.store_url()
    if url is None:
        return {"rest_one": None, "rest_concurrent": None}
    count = arena.settings.single_jobs
    with command(url, "serve", "--port", "0", heard=True) as server:
        host, port = address_told_by(server)
        one = asyncio.run(post_by_connections(host, port, count, 1))
        many = asyncio.run(post_by_connections(host, port, count, arena.settings.callers))
    return {"rest_one": count / one, "rest_concurrent": count / many}


async def post_by_connections(host: str, port: int, count: int, connections: int) -> float:
    """Seconds for `count` requests, shared evenly. The client is a bare socket: it is the server that is measured."""
    streams = [await asyncio.open_connection(host, port) for _ in range(connections)]
    for _ in range(WARM_UP_REQUESTS):
        await post(*streams[0])
    shares = [count // connections + (index < count % connections) for index in range(connections)]

    async def caller(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, share: int) -> None:
        for _ in range(share):
            await post(reader, writer)

    begun = time.perf_counter()
    async with asyncio.TaskGroup() as callers:
        for stream, share in zip(streams, shares, strict=True):
            callers.create_task(caller(*stream, share))
    seconds = time.perf_counter() - begun
    for _, writer in streams:
        writer.close()
    return seconds


async def post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(REQUEST)
    head = await reader.readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 201"):
        raise RuntimeError(f"the server answered {head.partition(bytes((13, 10)))[0].decode()}")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    await reader.readexactly(int(length[1]) if length else 0)


def address_told_by(server: subprocess.Popen[str]) -> tuple[str, int]:
    assert server.stderr is not None
    for line in server.stderr:
        if (told := SERVING.search(line)) is not None:
            return told[1], int(told[2])
    raise RuntimeError(f"`taskharbor serve` ended with {server.wait()} and told no address")


def worker(
    url: str, *options: str, report: Path | None = None
) -> AbstractContextManager[subprocess.Popen[str]]:
    environment = {} if report is None else {"BENCH_REPORT": str(report)}
    return command(url, "worker", *options, "--log-level", "error", environment=environment)


@contextmanager
def command(
    url: str, name: str, *options: str, environment: Mapping[str, str] | None = None, heard: bool = False
) -> Iterator[subprocess.Popen[str]]:
    """One of TaskHarbor's commands on this store, ended at the end; `heard`: what it tells can be read."""
    process = subprocess.Popen(
        [sys.executable, "-m", "taskharbor.cli", name, "-A", f"{APPLICATION}:harbor", *options],
        env={**os.environ, "TASKHARBOR_URL": url, **(environment or {})},
        stderr=subprocess.PIPE if heard else None,
        text=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - one call of the system
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
