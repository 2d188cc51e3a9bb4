"""Draining tasks of Django: TaskHarbor's backend beside django-tasks-db and django-ox, on one PostgreSQL.

    python -m benchmarks.django_backends             three rounds, interleaved
    python -m benchmarks.django_backends --quick     does it run?

Each has its own database, filled before with tasks that do nothing, persistent connections, no logs, and as many worker
processes as make it fastest here: each is measured with one and with two, and the better of them counts. A rate is
counted from the first finished task that is seen to the last one, without the time that Python takes to start.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg

from tools import postgres_server
from tools.django_environment import Unavailable, environment

SITE = Path(__file__).parent / "django_site"
SERIES = "6.1"
PEERS = ("django-tasks-db==0.13.0", "django-ox==1.9.1")
ROUNDS = 3
PATIENCE_SECONDS = 120


class Contestant(NamedTuple):
    name: str
    app: str
    backend: str
    worker: tuple[str, ...]
    finished: str  # how many tasks have succeeded
    tasks: int  # enough for some seconds
    options: str = "{}"


CONTESTANTS = (
    Contestant(
        "taskharbor",
        "taskharbor.integrations.django",
        "taskharbor.integrations.django.Backend",
        ("harbor", "worker", "--concurrency", "10", "--log-level", "error"),
        "SELECT count(*) FROM taskharbor.history WHERE status = 'succeeded'",
        6_000,
        json.dumps({"harbor": {"include": ["drained_tasks"]}}),
    ),
    Contestant(
        "django-tasks-db",
        "django_tasks_db",
        "django_tasks_db.DatabaseBackend",
        ("db_worker", "--interval", "0", "--no-startup-delay", "--no-reload", "--verbosity", "0"),
        "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'",
        400,
    ),
    Contestant(
        "django-ox",
        "django_ox",
        "django_ox.backend.OxBackend",
        ("ox_worker", "--concurrency", "4", "--interval", "0.05", "--verbosity", "0"),
        "SELECT count(*) FROM django_ox_oxtask WHERE status = 'SUCCESSFUL'",
        400,
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="does it run?")
    quick = parser.parse_args().quick
    rounds = 1 if quick else ROUNDS
    try:
        environment(SERIES, *PEERS)
    except Unavailable as reason:
        print(f"not measured: {reason}", file=sys.stderr)
        return 0
    rates: dict[str, dict[int, list[float]]] = {each.name: {1: [], 2: []} for each in CONTESTANTS}
    with postgres_server.running() as server:
        for turn in range(rounds):
            for contestant in CONTESTANTS:
                for processes in (1, 2):
                    name = f"drained_{contestant.app.partition('.')[0]}_{turn}_{processes}"
                    rates[contestant.name][processes].append(
                        _drain(contestant, server, name, 200 if quick else contestant.tasks, processes)
                    )
    _report(rates)
    return 0


def _drain(
    contestant: Contestant, server: postgres_server.Server, name: str, tasks: int, processes: int
) -> float:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    environ = _environ(contestant, server.dsn(name))
    for command in (["django", "migrate", "-v", "0", "--skip-checks"], ["drained_tasks", str(tasks)]):
        subprocess.run([_python(), "-m", *command], env=environ, check=True)
    with psycopg.connect(server.dsn(name), autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        command = [_python(), "-m", "django", *contestant.worker]
        workers = [
            subprocess.Popen(
                command,
                env=environ,
                start_new_session=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for _ in range(processes)
        ]
        try:
            return _rate(connection, contestant.finished, tasks)
        finally:
            for worker in workers:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()


def _rate(connection: psycopg.Connection[tuple[int]], query: str, tasks: int) -> float:
    first, begun = 0, 0.0
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        [(count,)] = connection.execute(query.encode()).fetchall()
        now = time.monotonic()
        if count and not first:
            first, begun = count, now
        if count >= tasks:
            return (count - first) / (now - begun) if count > first else float("inf")
        if now > give_up_at:
            raise RuntimeError(
                f"only {count} of {tasks} tasks were finished in {PATIENCE_SECONDS} s: {query}"
            )
        time.sleep(0.01)


def _python() -> str:
    return str(environment(SERIES, *PEERS).python)


def _environ(contestant: Contestant, dsn: str) -> dict[str, str]:
    parts = urlsplit(dsn)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.removeprefix("/"),
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }
    path = [*environment(SERIES, *PEERS).path, SITE, Path(__file__).parents[1] / "src"]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "DJANGO_SETTINGS_MODULE": "drained",
        "DRAINED_APP": contestant.app,
        "DRAINED_BACKEND": contestant.backend,
        "DRAINED_OPTIONS": contestant.options,
        "DRAINED_DATABASE": json.dumps(database),
    }


def _report(rates: dict[str, dict[int, list[float]]]) -> None:
    best = {name: max(map(statistics.median, by.values())) for name, by in rates.items()}
    for name, by in rates.items():
        each = ", ".join(f"{n} process(es): {statistics.median(found):,.0f}/s" for n, found in by.items())
        print(
            f"{name:16} {best[name]:>8,.0f} tasks/s   ours is {best['taskharbor'] / best[name]:.1f}x   ({each})"
        )


if __name__ == "__main__":
    sys.exit(main())
