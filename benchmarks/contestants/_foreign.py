"""A queue in another language: a process that is given commands and answers with what it measured itself."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from benchmarks import postgres
from benchmarks.contestant import check_all_ran
from benchmarks.contestants._postgres import PostgresStore
from benchmarks.processes import end_with_parent
from benchmarks.work import PLAIN, Work


class ForeignContestant(PostgresStore):
    program: ClassVar[tuple[str, ...]]
    variant: ClassVar[str] = ""
    """Which of its settings the program takes, where it has several."""

    @classmethod
    def install(cls, url: str) -> None:
        with cls._started(url) as process:
            _ask(process, verb="install")

    @classmethod
    def _environment(cls, slots: int | None) -> dict[str, str]:
        """Which of its settings the program takes, and how many jobs at once if that is given."""
        chosen = {} if slots is None else {"BENCH_SLOTS": str(slots)}
        return {**os.environ, "BENCH_VARIANT": cls.variant, **chosen}

    @classmethod
    def _started(cls, url: str, slots: int | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*cls.program, "obey", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=cls._environment(slots),
            preexec_fn=end_with_parent,  # noqa: PLW1509 - one call of the system
        )

    def setup(self, directory: Path) -> None:
        self.directory = directory
        self.database_url = postgres.url_of(directory)
        self.process = self._started(self.database_url, self.slots)

    def close(self) -> None:
        with self.process:  # it ends when there are no more commands
            pass

    def enqueue(self) -> None:
        self.enqueue_concurrent(1, 1)

    def enqueue_one(self, count: int) -> float:
        return self.enqueue_concurrent(count, 1)

    def enqueue_concurrent(self, count: int, callers: int) -> float:
        return float(_ask(self.process, verb="enqueue", count=count, callers=callers)["seconds"])

    def enqueue_bulk(self, count: int) -> float:
        return float(_ask(self.process, verb="enqueue_bulk", count=count)["seconds"])

    def fill_work(self, work: Work, count: int) -> None:
        if work == PLAIN:
            self.fill(count)
        else:
            _ask(self.process, verb="enqueue_work", count=count, milliseconds=work.milliseconds)

    def drain(self, count: int) -> float:
        answer = _ask(self.process, verb="drain", count=count)
        check_all_ran(answer["ran"], count)
        return float(answer["seconds"])

    def draining_pid(self) -> int:
        return self.process.pid

    def probe(self, number: int) -> None:
        _ask(self.process, verb="probe", number=number)

    def serve_command(self, descriptor: int) -> list[str]:
        self._leave()
        os.set_inheritable(descriptor, True)
        return [*self.program, "serve", self.database_url, str(descriptor)]

    def share_command(self) -> list[str]:
        self._leave()
        return [*self.program, "share", self.database_url]

    def _leave(self) -> None:
        """End the program that obeys: another one takes the place of this process."""
        self.close()
        os.environ.update(self._environment(self.slots))


def _ask(process: subprocess.Popen[str], **command: object) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(command) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args} ended with code {process.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer
