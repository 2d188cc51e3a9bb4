"""Scaling: the same jobs drained by one worker process, by two, by four, out of the same store."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.contestant import Contestant, check_all_ran
from benchmarks.processes import end_with_parent
from benchmarks.settings import Settings
from benchmarks.stores import fresh_store
from benchmarks.worker_process import child_command

READY, GO = "ready\n", "go\n"


def can_share(contestant: type[Contestant]) -> bool:
    return contestant.separate_worker and contestant.drain_share is not Contestant.drain_share


def drain_by_processes(
    module: str, contestant: Contestant, processes: int, settings: Settings, parent: Path
) -> dict[str, float | None]:
    """Jobs a second from the common start to the end of the last process."""
    figure = f"processes_{processes}"
    count = settings.memory_jobs
    with fresh_store(type(contestant), parent) as directory:
        contestant.setup(directory)
        contestant.fill(count)
        contestant.close()
        command = child_command("share", module, contestant.name, settings)
        command += ["--directory", str(directory)]
        workers = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one call of the system
            )
            for _ in range(processes)
        ]
        try:
            for worker in workers:
                _expect(worker, READY)
            begun = time.perf_counter()
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write(GO)
                worker.stdin.flush()
            shares = [_share_of(worker) for worker in workers]
            seconds = time.perf_counter() - begun
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        if None in shares:
            return {figure: None}
        check_all_ran(sum(share or 0 for share in shares), count)
        return {figure: count / seconds}


def _expect(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdout is not None
    if (seen := worker.stdout.readline()) != line:
        raise RuntimeError(f"a worker process said {seen!r} where {line!r} was expected")


def _share_of(worker: subprocess.Popen[str]) -> int | None:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"a worker process ended with code {worker.wait()}")
    share: int | None = json.loads(line)
    return share


def drain_share(contestant: Contestant) -> None:
    """What each of the worker processes does: say that it is there, wait for the start, and take its share."""
    sys.stdout.write(READY)
    sys.stdout.flush()
    sys.stdin.readline()
    print(json.dumps(contestant.drain_share()), flush=True)
