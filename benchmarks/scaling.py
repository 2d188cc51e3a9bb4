"""Scaling: the same jobs drained by one worker process, by two, by four, out of the same store."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Self

from benchmarks.contestant import Contestant, check_all_ran
from benchmarks.processes import end_with_parent, family_seconds
from benchmarks.settings import Settings
from benchmarks.stores import fresh_store
from benchmarks.worker_process import child_command

READY, GO = "ready\n", "go\n"
STOP_SECONDS = 30.0


def can_share(contestant: type[Contestant]) -> bool:
    return contestant.separate_worker and (
        contestant.drain_share is not Contestant.drain_share
        or contestant.share_command is not Contestant.share_command
    )


def drain_by_processes(
    module: str, contestant: Contestant, processes: int, settings: Settings, parent: Path
) -> dict[str, float | None]:
    """Jobs a second from the common start until all of them have run, and what a job costs.

    A process of TaskHarbor tells its number when it has settled its last job, one of the others as it goes on.
    """
    count = min(settings.memory_jobs, contestant.jobs_max or settings.memory_jobs)
    with fresh_store(type(contestant), parent) as directory:
        contestant.setup(directory)
        contestant.fill(count)
        contestant.close()
        with Crew(module, contestant.name, directory, processes, settings) as crew:
            before = crew.worker_seconds(), contestant.server_seconds(), contestant.log_bytes()
            begun = time.perf_counter()
            crew.start()
            crew.wait_until(count, settings.timeout_seconds)
            seconds = time.perf_counter() - begun
            after = crew.worker_seconds(), contestant.server_seconds(), contestant.log_bytes()
            check_all_ran(crew.stop(), count)
    names = ("processes_worker_cpu", "processes_server_cpu", "processes_log_bytes")
    units = (1e6, 1e6, 1)
    figures: dict[str, float | None] = {f"processes_{processes}": count / seconds}
    for name, unit, was, now in zip(names, units, before, after, strict=True):
        known = was is not None and now is not None
        figures[f"{name}_{processes}"] = (now - was) / count * unit if known else None  # type: ignore[operator]
    return figures


class Crew:
    """Worker processes that share one store, begin together, and tell how many jobs they have run."""

    def __init__(self, module: str, name: str, directory: Path, processes: int, settings: Settings) -> None:
        command = [*child_command("share", module, name, settings), "--directory", str(directory)]
        self._ran = [0] * processes
        self._changed = threading.Condition()
        self._workers = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=end_with_parent,  # noqa: PLW1509 - one call of the system
            )
            for _ in range(processes)
        ]
        self._readers = [threading.Thread(target=self._read, args=(each,)) for each in range(processes)]

    def __enter__(self) -> Self:
        for worker in self._workers:
            _expect(worker, READY)
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.kill()
            worker.wait()
        for reader in self._readers:
            if reader.ident is not None:
                reader.join()
        for worker in self._workers:
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    pipe.close()

    def start(self) -> None:
        for reader, worker in zip(self._readers, self._workers, strict=True):
            assert worker.stdin is not None
            reader.start()
            worker.stdin.write(GO)
            worker.stdin.flush()

    def worker_seconds(self) -> float | None:
        """Processor time of all of them so far."""
        used = [family_seconds(worker.pid) for worker in self._workers]
        return None if None in used else sum(each or 0.0 for each in used)

    def wait_until(self, count: int, seconds: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: sum(self._ran) >= count or self._all_ended(), seconds):
                raise TimeoutError(f"{sum(self._ran)} of {count} jobs ran within {seconds:.0f} s")

    def stop(self) -> int:
        """Let each end its worker, and return how many jobs ran in all."""
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.close()
        for reader in self._readers:
            reader.join(STOP_SECONDS)
        return sum(self._ran)

    def _all_ended(self) -> bool:
        return not any(reader.is_alive() for reader in self._readers)

    def _read(self, index: int) -> None:
        stdout = self._workers[index].stdout
        assert stdout is not None
        for line in stdout:
            with self._changed:
                self._ran[index] = json.loads(line)
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()


def _expect(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdout is not None
    if (seen := worker.stdout.readline()) != line:
        raise RuntimeError(f"a worker process said {seen!r} where {line!r} was expected")


def drain_share(contestant: Contestant) -> None:
    """What each of the worker processes does: say that it is there, wait for the start, and take its share."""
    sys.stdout.write(READY)
    sys.stdout.flush()
    sys.stdin.readline()
    contestant.drain_share(lambda ran: print(json.dumps(ran), flush=True))
    sys.stdin.read()  # stay until the others have ended: what this process has used is still to be read
