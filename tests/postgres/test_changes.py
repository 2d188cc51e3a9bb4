"""Wake-up: notifications, coalesced, and polling as the net."""

from __future__ import annotations

import asyncio

import asyncpg
import psycopg
import pytest

from taskharbor.drivers.base import Cancel, CancelRequests, ClaimRequest, Requeue
from taskharbor.drivers.postgres import PostgresDriver, changes
from taskharbor.drivers.postgres.changes import channel_of
from taskharbor.records import NewJob


@pytest.fixture(autouse=True)
def no_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who listens does not look by itself: what is heard, is heard by notification."""
    monkeypatch.setattr(changes, "NET_SECONDS", 3600.0)


def job(number: int) -> NewJob:
    return NewJob(f"019b76da-a800-7000-8000-{number:012x}", "task")


async def _listening(driver: PostgresDriver) -> None:
    """Until its listener is there: its first news say so."""
    async with asyncio.timeout(60):
        await driver.wait_for_change(driver.change_token(), 3600)


async def _heard(driver: PostgresDriver, token: int) -> None:
    """Until there are other news than these."""
    async with asyncio.timeout(60):
        await driver.wait_for_change(token, 3600)


async def test_change_by_another_process_arrives_without_polling(dsn: str) -> None:
    mine, others = PostgresDriver(dsn), PostgresDriver(dsn)
    await mine.migrate()
    await _listening(mine)
    for number in range(1, 8):
        token = mine.change_token()
        await others.enqueue([job(number)])
        await _heard(mine, token)
    token = mine.change_token()
    await others.operate(Cancel(), [job(1).id])
    await _heard(mine, token)
    await mine.close()
    await others.close()


async def test_only_a_request_to_a_running_job_is_heard_as_a_request(dsn: str) -> None:
    mine, others = PostgresDriver(dsn), PostgresDriver(dsn)
    await mine.migrate()
    await _listening(mine)
    mark = (await mine.cancel_requests([])).mark
    await mine.enqueue([job(1), job(2)])
    await mine.claim(ClaimRequest("worker/1", 60_000_000, 1))
    for operation in (Cancel(), Requeue()):
        token = mine.change_token()
        await others.operate(operation, [job(2).id])
        await _heard(mine, token)
        assert await mine.cancel_requests(["worker/1"], mark) == CancelRequests(mark)
    token = mine.change_token()
    await others.operate(Cancel(), [job(1).id])
    await _heard(mine, token)
    assert (await mine.cancel_requests(["worker/1"], mark)).jobs == {"worker/1": (job(1).id,)}
    await mine.close()
    await others.close()


async def test_many_enqueues_send_few_notifications(dsn: str) -> None:
    """A notification in every transaction would make every commit wait for a lock of the whole server."""
    driver = PostgresDriver(dsn)
    await driver.migrate()
    heard = []
    connection = await asyncpg.connect(dsn)
    await connection.add_listener(channel_of(driver.schema), lambda *notification: heard.append(notification))
    for start in range(1, 401, 20):
        await asyncio.gather(*[driver.enqueue([job(number)]) for number in range(start, start + 20)])
    await asyncio.sleep(0.1)
    assert 1 <= len(heard) < 200
    await connection.close()
    await driver.close()


# -- a quiet producer ------------------------------------------------------------------------------


class Ear:
    """Listens without the loop: what the loop's tasks have not sent yet cannot be heard."""

    def __init__(self, driver: PostgresDriver) -> None:
        self._connection = psycopg.connect(driver.dsn, autocommit=True)
        self._connection.execute(f"LISTEN {channel_of(driver.schema)}")

    def count(self) -> int:
        """How many notifications have come since it was last asked."""
        heard: list[psycopg.Notify] = []
        self._connection.add_notify_handler(heard.append)
        self._connection.execute("SELECT 1")
        self._connection.remove_notify_handler(heard.append)
        return len(heard)

    async def until_heard(self) -> None:
        """The loop goes on while a thread waits."""
        assert await asyncio.to_thread(lambda: list(self._connection.notifies(timeout=10, stop_after=1)))

    def close(self) -> None:
        self._connection.close()


async def _answer_announcement_with(driver: PostgresDriver, statement: str) -> None:
    """Replace what says whether a commit may announce itself."""
    connection = await asyncpg.connect(driver.dsn)
    await connection.execute(
        f"CREATE OR REPLACE FUNCTION {driver.schema}.announcement() RETURNS text LANGUAGE plpgsql "
        f"AS $$ BEGIN {statement}; END $$"
    )
    await connection.close()


async def test_the_commit_of_a_quiet_producer_announces_its_job(dsn: str) -> None:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    ear = Ear(driver)
    await driver.enqueue([job(1)])
    assert ear.count() == 1
    await driver.close()
    assert ear.count() == 0  # once is enough
    ear.close()


async def test_a_producer_that_is_not_quiet_announces_after_its_commits(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "QUIET_SECONDS", 3600)
    driver = PostgresDriver(dsn)
    await driver.migrate()
    ear = Ear(driver)
    await driver.enqueue([job(1)])
    ear.count()
    await driver.enqueue([job(2)])
    assert ear.count() == 0
    await ear.until_heard()
    await driver.close()
    ear.close()


async def test_a_commit_that_may_not_announce_itself_is_announced_after_it(dsn: str) -> None:
    """Others have announced so much that this commit would wait for them."""
    driver = PostgresDriver(dsn)
    await driver.migrate()
    await _answer_announcement_with(driver, "RETURN NULL")
    ear = Ear(driver)
    await driver.enqueue([job(1)])
    assert ear.count() == 0
    await ear.until_heard()
    await driver.close()
    ear.close()


@pytest.mark.parametrize("refusal", ["insufficient_privilege", "program_limit_exceeded"])
async def test_a_job_that_cannot_be_announced_is_stored(dsn: str, refusal: str) -> None:
    """Its producer lacks the right, or the server has no room for a notification."""
    driver = PostgresDriver(dsn)
    await driver.migrate()
    await _answer_announcement_with(driver, f"RAISE {refusal}")
    [answer] = await driver.enqueue([job(1)])
    assert not answer.existed
    assert (await driver.get([job(1).id]))[0] is not None
    await driver.close()


async def test_a_job_that_exists_is_answered_by_a_quiet_producer_as_by_any(dsn: str) -> None:
    existed = []
    for _ in range(2):
        driver = PostgresDriver(dsn)  # one that has announced nothing yet
        await driver.migrate()
        existed += [answer.existed for answer in await driver.enqueue([job(1)])]
        await driver.close()
    assert existed == [False, True]


# -- listening -------------------------------------------------------------------------------------


async def test_lost_listener_is_rebuilt_and_says_so(dsn: str) -> None:
    """What happened while nobody listened has not been heard: so the return itself is news."""
    mine, others = PostgresDriver(dsn), PostgresDriver(dsn)
    await mine.migrate()
    await _listening(mine)
    admin = await asyncpg.connect(dsn)
    token, mark = mine.change_token(), (await mine.cancel_requests([])).mark
    killed = await admin.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    )
    assert len(killed) == 1
    await _heard(mine, token)
    assert (await mine.cancel_requests([], mark)).mark != mark
    token = mine.change_token()
    await others.enqueue([job(1)])
    await _heard(mine, token)
    await admin.close()
    await mine.close()
    await others.close()


async def test_without_listening_polling_is_enough(dsn: str) -> None:
    """Behind a pooler there is no session to listen in."""
    mine, others = PostgresDriver(dsn, listen=False), PostgresDriver(dsn, listen=False)
    await mine.migrate()
    token = mine.change_token()
    await others.enqueue([job(1)])
    await _heard(mine, token)
    admin = await asyncpg.connect(dsn)
    assert not await admin.fetch(
        "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND pid <> pg_backend_pid()"
    )
    await admin.close()
    await mine.close()
    await others.close()


async def test_closing_leaves_no_task_and_no_waiter_behind(dsn: str) -> None:
    driver = PostgresDriver(dsn)
    await driver.migrate()
    await _listening(driver)
    waiting = asyncio.ensure_future(driver.wait_for_change(driver.change_token(), 3600))
    await asyncio.sleep(0)
    await driver.enqueue([job(1)])  # of which somebody is still to be told
    await driver.close()
    async with asyncio.timeout(60):
        await waiting
    assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()


def test_channels_of_long_schemas_fit(dsn: str) -> None:
    assert channel_of("taskharbor") == "taskharbor_taskharbor"
    assert channel_of("a" * 63) != channel_of("b" * 63)
    assert len(channel_of("a" * 63)) <= 63


async def test_producer_that_enqueues_and_closes_at_once_is_heard(dsn: str) -> None:
    """The notification that was still to be sent goes before the connections do."""
    mine = PostgresDriver(dsn)
    await mine.migrate()
    await _listening(mine)
    for number in range(1, 6):
        token = mine.change_token()
        producer = PostgresDriver(dsn)
        await producer.enqueue([job(2 * number)])
        await producer.enqueue([job(2 * number + 1)])
        await producer.close()
        await _heard(mine, token)
    await mine.close()
