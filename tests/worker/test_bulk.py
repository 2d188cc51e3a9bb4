"""Bulk operations as jobs: they act on what was there before them, under the operator's name, and can be watched."""

from __future__ import annotations

import pytest

from taskharbor import Harbor, RetryPolicy
from taskharbor.errors import ConfigurationError
from taskharbor.records import JobFilter
from tests.worker.apart import done

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
def shop(harbor: Harbor) -> Harbor:
    @harbor.task(name="charge", retry=ONCE)
    def charge(order: int) -> None:
        raise ValueError("the bank is closed")

    return harbor


async def _states(harbor: Harbor) -> list[str]:
    return [str(job.state) for job in reversed(await harbor.jobs.alist(task="charge"))]


async def test_bulk_job_cancels_what_was_there_and_neither_itself_nor_later_jobs(shop):
    await shop.aenqueue_many(shop.tasks["charge"].using(delay=3_600).s(n) for n in range(3))
    shop.driver.clock.advance(1)
    with shop.acting_as("ada"):
        bulk = await shop.jobs.astart_bulk("cancel", everything=True)
    shop.driver.clock.advance(1)
    await shop.tasks["charge"].using(delay=3_600).aenqueue(order=9)
    await done(shop)
    assert await _states(shop) == ["cancelled", "cancelled", "cancelled", "scheduled"]
    assert await bulk.aresult() == {"changed": 3}
    assert (await bulk.arefresh()).progress.message == "looked at 3 of 3"
    [action] = await shop.audit.alist(verb="job.cancel")
    assert (action.actor, action.count) == ("ada", 3)


async def test_bulk_requeue_leaves_alone_what_died_after_it_was_asked_for(shop):
    await shop.tasks["charge"].aenqueue(order=1)
    await done(shop)
    shop.driver.clock.advance(1)
    bulk = await shop.jobs.astart_bulk("requeue", task="charge", on_queue="operations")
    shop.driver.clock.advance(1)
    await shop.tasks["charge"].aenqueue(order=2)
    await done(shop, queues=["default"])
    await done(shop, queues=["operations"])
    assert await bulk.aresult() == {"changed": 1}
    assert await _states(shop) == ["ready", "dead"]


@pytest.mark.parametrize(("verb", "left"), [("discard", ["cancelled"]), ("delete", [])])
async def test_bulk_discards_and_deletes(shop, verb, left):
    await shop.tasks["charge"].aenqueue(order=1)
    await done(shop)
    shop.driver.clock.advance(1)
    bulk = await shop.jobs.astart_bulk(verb, payload={"order": 1})
    await done(shop)
    assert await bulk.aresult() == {"changed": 1}
    assert await _states(shop) == left


async def test_bulk_without_a_filter_must_say_that_it_means_everything(shop):
    await shop.tasks["charge"].using(delay=3_600).aenqueue(order=1)
    for verb in ("cancel", "requeue"):
        with pytest.raises(ConfigurationError, match=f"would {verb} every job .* or everything=True"):
            await shop.jobs.astart_bulk(verb)
        with pytest.raises(ConfigurationError, match=f"would {verb} every job"):
            await shop.jobs.astart_bulk(verb, JobFilter(), on_queue="operations")
    with pytest.raises(ConfigurationError, match="both given"):
        await shop.jobs.astart_bulk("cancel", task="charge", everything=True)
    assert await shop.jobs.acount() == 1


async def test_bulk_with_nothing_to_do_or_an_unknown_verb_is_refused(shop):
    with pytest.raises(ConfigurationError, match="no job matches, so there is nothing to cancel"):
        await shop.jobs.astart_bulk("cancel", tag="none")
    with pytest.raises(ConfigurationError, match="one of requeue, discard, cancel, delete, not 'burn'"):
        await shop.jobs.astart_bulk("burn")
