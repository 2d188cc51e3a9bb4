"""kill -9 of members of a group: no message is lost, and only those are repeated that were not committed."""

from __future__ import annotations

import os
import random
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor
from taskharbor.drivers.capabilities import HandOver
from taskharbor.records import AttemptStatus
from taskharbor.sync import run_inline
from tests.streams.crew import (
    KEYS,
    MEMBERS,
    MESSAGES,
    PARTITIONS,
    PATIENCE_SECONDS,
    Crew,
    fails_once,
    is_poisonous,
)
from tests.streams.log import Log
from tools.kafka_server import Broker

ORDERS = os.environ.get("TASKHARBOR_FAULT_STREAM_ORDERS", "key").split()

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Harbor]:
    with Harbor(f"sqlite:///{tmp_path}/harbor.db") as harbor:
        harbor.migrate()
        yield harbor


@pytest.fixture(params=ORDERS)
def crew(tmp_path: Path, broker: Broker, store: Harbor, request: pytest.FixtureRequest) -> Iterator[Crew]:
    log = Log(broker.bootstrap, f"tasks-{uuid.uuid4().hex[:10]}", partitions=PARTITIONS)
    crew = Crew(tmp_path, log, broker, store.url, request.param)
    crew.stored = lambda: _stored(crew, store)
    yield crew
    crew.close()


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_killed_members_lose_no_message_and_repeat_only_what_was_not_committed(crew: Crew, store: Harbor):
    good = {n for n in range(MESSAGES) if not is_poisonous(n)}
    crew.run([""] * MEMBERS, random.Random(17))
    crew.wait_until(lambda: crew.ended >= good and crew.log.is_committed())
    crew.wait_until(lambda: store.jobs.counts()["dead"] == MESSAGES // 100 and not _unfinished(store))
    crew.note_committed()
    # Every message that failed has its job with all of its attempts; the poisonous ones are dead.
    dead = _by_message(_jobs(store, "dead"))
    assert sorted(dead) == list(range(99, MESSAGES, 100))
    succeeded = _by_message(_jobs(store, "succeeded"))
    failed_once = {n for n in good if fails_once(n)}
    assert succeeded.keys() >= failed_once
    for n in failed_once:
        assert succeeded[n].attempts == 1
        statuses = Counter(each.status for each in store.jobs.history(succeeded[n].id))
        assert statuses[AttemptStatus.FAILED] == statuses[AttemptStatus.SUCCEEDED] == 1
    for job in dead.values():
        statuses = Counter(each.status for each in store.jobs.history(job.id))
        assert (job.attempts, statuses[AttemptStatus.FAILED]) == (1, 1)
    crew.check_repeats()
    if crew.how != "none":
        crew.check_order(KEYS if crew.how == "key" else PARTITIONS)


def _stored(crew: Crew, store: Harbor) -> frozenset[int]:
    """Messages that stand in the store."""
    asked = HandOver.of(store.driver).handed_over(f"stream:{crew.log.topic}", "", "~", MESSAGES)
    places = (key.split(":")[-2:] for key in run_inline(asked))
    return frozenset(crew.message_at(int(partition), int(offset)) for partition, offset in places)


def _by_message(jobs: list[Any]) -> dict[int, Any]:
    found = {job.payload["n"]: job for job in jobs}
    assert len(found) == len(jobs), "a message has two jobs"
    return found


def _jobs(store: Harbor, state: Any) -> list[Any]:
    """All jobs of this state, page by page."""
    found: list[Any] = []
    cursor = None
    while True:
        page = store.jobs.list(task="note", state=state, limit=1_000, cursor=cursor)
        found += page
        cursor = page.next_cursor
        if cursor is None:
            return found


def _unfinished(store: Harbor) -> int:
    counts = store.jobs.counts()
    return counts["ready"] + counts["scheduled"] + counts["running"] + counts["waiting"]
