"""One file, many processes and threads: no job twice, none lost, and no lock that a caller would see."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from sqlite3 import connect

import pytest

from taskharbor import Harbor
from taskharbor.drivers.sqlite.sql import migrations
from tests.stores import producers

PROCESSES = 4


def run(role: str, file: Path, *numbers: tuple[int, ...]) -> list[list[str]]:
    """Run a role in a process for each tuple of numbers, all at once; the lines that each printed."""
    running = [
        subprocess.Popen(
            [sys.executable, producers.__file__, role, str(file), *map(str, each)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for each in numbers
    ]
    answers = []
    for process in running:
        out, err = process.communicate(timeout=110)
        assert process.returncode == 0, err
        answers.append(out.split())
    return answers


def test_ten_thousand_enqueues_of_one_key_make_one_job(file: Path):
    answers = run("race", file, *[(10, 250)] * PROCESSES)
    assert len({each for *ids, _ in answers for each in ids}) == 1
    assert sum(int(fresh) for *_, fresh in answers) == 1
    with Harbor(f"sqlite:///{file}") as harbor:
        assert sum(harbor.jobs.counts().values()) == 1
    with closing(connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM taskharbor_jobs").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM taskharbor_ready").fetchone() == (1,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.filterwarnings("error")
def test_no_lock_reaches_a_caller_while_four_processes_enqueue_claim_and_settle(file: Path):
    answers = run("everything", file, *[(number, 3) for number in range(PROCESSES)])
    numbers = [[int(number) for number in answer] for answer in answers]
    for enqueued, done, cancelled in numbers:
        assert enqueued == done > 0
        assert cancelled > 0
    with Harbor(f"sqlite:///{file}") as harbor:
        counts = {state: count for state, count in harbor.jobs.counts().items() if count}
        assert counts == {
            "succeeded": sum(done for _, done, _ in numbers),
            "cancelled": sum(cancelled for *_, cancelled in numbers),
        }
    with closing(connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_processes_that_open_a_new_file_at_once_make_one_schema(file: Path):
    for _ in range(3):
        run("race", file, *[(1, 1)] * PROCESSES)
        with closing(connect(file)) as connection:
            applied = [
                row[0] for row in connection.execute("SELECT name FROM taskharbor_schema ORDER BY version")
            ]
            assert applied == [name for _, name, _ in migrations()]
        file.unlink()
