"""Where a handler fails, its fingerprint and the version of its code are stored with the attempt."""

from __future__ import annotations

import asyncio
import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, RetryPolicy, Unrecoverable
from taskharbor.client import code_version
from taskharbor.client.handle import Job
from taskharbor.errors import ConfigurationError
from taskharbor.records import State
from taskharbor.rules.fingerprint import of_kind
from tests.worker import isolated
from tests.worker.apart import apart, done
from tests.worker.stage import PATIENCE_SECONDS, attempts_of, the_job, working


def charge(order: str) -> None:
    raise ValueError(f"order {order} has no address")


def ship(order: str) -> None:
    raise ConnectionError(
        f"cannot reach https://ship.example/{order}?at={random.random()} within {len(order)} s"
    )


def report(order: str) -> None:
    try:
        Path(f"/srv/reports/{order}.csv").read_text()
    except OSError as error:
        raise Unrecoverable(f"no file '/srv/reports/{order}.csv'") from error


async def three_causes(harbor: Harbor, jobs: int) -> None:
    """Dead jobs of three causes, with ids, numbers, URLs and paths in their texts."""
    once = RetryPolicy(max_attempts=1)
    tasks = [harbor.task(name=f.__name__, retry=once)(f) for f in (charge, ship, report)]
    await harbor.aenqueue_many(tasks[n % 3].s(str(uuid.uuid4())) for n in range(jobs))
    await done(harbor, concurrency=20)


async def test_jobs_of_three_causes_are_three_groups(harbor):
    await three_causes(harbor, 60)
    groups = await harbor.dlq.agroups()
    assert [(group.count, group.tasks) for group in groups] == [
        (20, (each,)) for each in sorted_tasks(groups)
    ]
    assert {group.tasks[0] for group in groups} == {"charge", "ship", "report"}
    [sample] = [group for group in groups if group.tasks == ("charge",)]
    assert "has no address" in str(sample.error)
    job = await harbor.jobs.aget(sample.sample_id)
    assert job.fingerprint == sample.fingerprint == (await attempts_of(job))[0].fingerprint


def sorted_tasks(groups: list[Any]) -> list[str]:
    return [group.tasks[0] for group in sorted(groups, key=lambda group: group.fingerprint)]


async def test_whole_group_is_requeued_or_discarded(harbor):
    await three_causes(harbor, 9)
    one, other, _ = await harbor.dlq.agroups()
    assert await harbor.dlq.adiscard_all(fingerprint=one.fingerprint) == 3
    assert await harbor.dlq.arequeue_all(fingerprint=other.fingerprint) == 3
    assert [group.count for group in await harbor.dlq.agroups()] == [3]


async def test_groups_of_any_filter_are_those_of_the_jobs_that_match(harbor):
    """Also of one that no index of dead jobs has, and on a store that does not group by itself."""
    once = RetryPolicy(max_attempts=1)
    task = harbor.task(name="charge", retry=once)(charge)
    await task.using(tags=["x"]).aenqueue("1")
    await task.aenqueue("2")
    await done(harbor)
    assert [group.count for group in await harbor.dlq.agroups(tag="x")] == [1]
    assert [group.count for group in await harbor.dlq.agroups(error="has no")] == [2]
    assert await harbor.dlq.agroups(tag="y") == []


async def test_handler_process_says_the_fingerprint_of_its_own_error(memory):
    """The same as in the worker itself: the frames are those of the handler."""
    inside = memory.task(name="inside", retry=RetryPolicy(max_attempts=1))(isolated.odd)
    jobs = [await apart(memory, isolated.odd).aenqueue(), await inside.aenqueue()]
    await done(memory)
    first, second = [(await the_job(memory, job)).fingerprint for job in jobs]
    assert first == second is not None


async def dead(harbor: Harbor, job: Job[Any], **options: Any) -> Job[Any]:
    """The job once it is dead, with a clock that goes on meanwhile."""
    clock: Any = harbor.driver.clock
    async with working(harbor, **options), asyncio.timeout(PATIENCE_SECONDS):
        while (found := await the_job(harbor, job)).state is not State.DEAD:
            clock.advance(1)
            await asyncio.sleep(0.001)
        return found


async def test_timeouts_have_the_fingerprint_of_their_task_and_kind(memory):
    @memory.task(name="slow", timeout=5, retry=RetryPolicy(max_attempts=1))
    async def slow() -> None:
        await asyncio.Event().wait()

    found = await dead(memory, await slow.aenqueue())
    assert found.fingerprint == of_kind("slow", "timed_out")


async def test_unknown_task_has_the_fingerprint_of_its_task_and_kind(memory):
    found = await dead(memory, await memory.aenqueue("nowhere"), unrunnable_grace_seconds=0.5)
    assert found.fingerprint == of_kind("nowhere", "unknown_task")


# -- the version of the code -----------------------------------------------------------------------


@pytest.mark.parametrize("given", ["2026.11.3", None])
async def test_version_of_the_code_is_stored_with_the_failure(given, monkeypatch: pytest.MonkeyPatch):
    """The harbor's; else that of the environment."""
    monkeypatch.setenv("TASKHARBOR_VERSION", "from-outside")
    async with Harbor("memory://", version=given) as harbor:
        await harbor.task(name="charge", retry=RetryPolicy(max_attempts=1))(charge).aenqueue("1")
        await done(harbor)
        [group] = await harbor.dlq.agroups()
        assert group.versions == (given or "from-outside",)


def test_version_of_a_package_is_that_of_the_distribution_named_like_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TASKHARBOR_VERSION", raising=False)
    assert code_version.found_version("msgspec.json") is not None
    assert code_version.found_version("no_such_package.jobs") is None
    assert code_version.found_version("__main__") is None


@pytest.mark.parametrize("version", ["", "a\nb", 7, "x" * 101])
def test_unfit_version_is_refused(version):
    with pytest.raises(ConfigurationError, match="version must be printable text"):
        Harbor("memory://", version=version)
