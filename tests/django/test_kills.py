"""kill -9 of Django's workers at any moment: no task is lost, and none is stuck.

200 tasks and 3 kills in the suite; TASKHARBOR_FAULT_DJANGO_TASKS and TASKHARBOR_FAULT_DJANGO_KILLS for more.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from taskharbor import Harbor
from tests.django.environments import Project
from tests.postgres import store

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

TASKS = int(os.environ.get("TASKHARBOR_FAULT_DJANGO_TASKS", "200"))
KILLS = int(os.environ.get("TASKHARBOR_FAULT_DJANGO_KILLS", "3"))
WORKERS = 2
PATIENCE_SECONDS = 240
ENDED = ("succeeded", "dead", "cancelled")


def test_killed_workers_lose_no_task_and_leave_none_stuck(
    project: Project, database: dict[str, Any], kind: str
) -> None:
    assert project.manage("migrate").returncode == 0
    done = project.manage("place", str(TASKS))
    assert done.returncode == 0, done.stdout
    with _harbor(database, kind) as harbor, _crew(project) as crew:
        _kill_now_and_then(harbor, crew)
        _wait_until(lambda: _counts(harbor)[0] == TASKS, harbor)
        ended, states = _counts(harbor)
    assert (ended, states) == (TASKS, {"succeeded": TASKS})
    sent = _sent(database, kind)
    assert len(sent) == TASKS  # what was rolled back was never placed
    assert all(sent), "a task succeeded and left nothing behind"
    # A killed worker may have done its work before it could say so: such a task is done again, and no other.
    assert sum(sent) - TASKS <= KILLS * 2 * 8
    done = project.run("-c", _STUCK, DJANGO_SETTINGS_MODULE="shop.settings")
    assert json.loads(done.stdout.splitlines()[-1]) == {"SUCCESSFUL": TASKS}, done.stdout


# What Django itself says of every task.
_STUCK = """
import collections, json, django
django.setup()
from shop import tasks
from taskharbor.integrations.django import get_harbor
with get_harbor() as harbor:
    ids, page = [], harbor.jobs.list(limit=1000)
    while True:
        ids += [job.id for job in page]
        if page.next_cursor is None:
            break
        page = harbor.jobs.list(limit=1000, cursor=page.next_cursor)
print(json.dumps(collections.Counter(str(tasks.ship.get_result(each).status) for each in ids)))
"""


class _Crew:
    """Workers in processes of their own, each of which is replaced when it is killed."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self.workers = [self._start() for _ in range(WORKERS)]

    def _start(self) -> subprocess.Popen[str]:
        command = ("harbor", "worker", "--concurrency", "8", "--lease-seconds", "2", "--log-level", "error")
        return self._project.start(self._project.folder / "manage.py", *command, start_new_session=True)

    def replace(self, index: int) -> None:
        self._kill(self.workers[index])
        self.workers[index] = self._start()

    def close(self) -> None:
        for worker in self.workers:
            self._kill(worker)

    def _kill(self, worker: subprocess.Popen[str]) -> None:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()


@contextmanager
def _crew(project: Project) -> Iterator[_Crew]:
    crew = _Crew(project)
    try:
        yield crew
    finally:
        crew.close()


@contextmanager
def _harbor(database: dict[str, Any], kind: str) -> Iterator[Harbor]:
    with Harbor(f"sqlite:///{database['NAME']}" if kind == "sqlite" else _dsn(database)) as harbor:
        yield harbor


def _kill_now_and_then(harbor: Harbor, crew: _Crew) -> None:
    """Kill a worker whenever another part of the tasks has ended, at a moment that a seed chooses."""
    chance = random.Random(19)
    for number in range(KILLS):
        reached = TASKS * (number + 1) // (KILLS + 1)
        _wait_until(lambda: _counts(harbor)[0] >= reached, harbor)  # noqa: B023
        time.sleep(chance.uniform(0, 0.02))  # somewhere between a claim and its settle
        crew.replace(chance.randrange(WORKERS))


def _counts(harbor: Harbor) -> tuple[int, dict[str, int]]:
    states = {str(state): count for state, count in harbor.jobs.counts().items() if count}
    return sum(states.get(name, 0) for name in ENDED), states


def _wait_until(condition: Any, harbor: Harbor) -> None:
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < give_up_at, _counts(harbor)
        time.sleep(0.01)


def _sent(database: dict[str, Any], kind: str) -> list[int]:
    statement = "SELECT sent FROM shop_order"
    if kind == "postgresql":
        return [row["sent"] for row in store.query(_dsn(database), statement)]
    import sqlite3

    connection = sqlite3.connect(database["NAME"])
    try:
        return [sent for (sent,) in connection.execute(statement)]
    finally:
        connection.close()


def _dsn(database: dict[str, Any]) -> str:
    return "postgresql://{USER}@{HOST}:{PORT}/{NAME}".format(**database)
