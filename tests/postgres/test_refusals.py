"""What the server refuses in a settle: content is the job's, anything else is a bug of ours, and no outage."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from taskharbor import Harbor, Worker
from taskharbor.records import Reason, State
from tests.postgres import store

BROKEN = """
CREATE FUNCTION {schema}.broken() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.result = '"bad"' THEN RAISE EXCEPTION 'a bug'; END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER broken BEFORE INSERT ON {schema}.attempts FOR EACH ROW EXECUTE FUNCTION {schema}.broken();
"""
CHECK = """ALTER TABLE {schema}.attempts ADD CONSTRAINT good CHECK (result <> '"bad"')"""
UNIQUE = "CREATE UNIQUE INDEX good ON {schema}.attempts (result)"


@pytest.fixture
def harbor() -> Iterator[Harbor]:
    with store.fresh() as driver, Harbor(driver=driver) as harbor:
        harbor.migrate()
        yield harbor


def settled(
    harbor: Harbor, change: str, results: list[str]
) -> list[tuple[State, Reason | None, int, list[str]]]:
    """What becomes of jobs with these results in a schema that was changed so, and their history."""

    @harbor.task(name="work")
    async def work(result: str) -> str:
        return result

    store.execute(harbor.driver.dsn, change.format(schema=harbor.driver.schema))  # type: ignore[attr-defined]
    jobs = work.enqueue_many([{"result": result} for result in results])
    Worker(harbor).drain_sync()
    found = [harbor.jobs.get(job.id) for job in jobs]
    return [
        (job.state, job.reason, job.attempts, [str(row.status) for row in job.history()]) for job in found
    ]


SUCCEEDED = (State.SUCCEEDED, None, 0, ["succeeded"])
RELEASED = (State.SCHEDULED, None, 0, ["released"])


def test_error_that_nothing_explains_releases_its_job_and_holds_up_no_other(harbor: Harbor) -> None:
    assert settled(harbor, BROKEN, ["a", "bad", "b", "c"]) == [SUCCEEDED, RELEASED, SUCCEEDED, SUCCEEDED]


def test_content_that_a_constraint_refuses_ends_its_job(harbor: Harbor) -> None:
    dead = (State.DEAD, Reason.UNRECOVERABLE, 1, ["failed"])
    assert settled(harbor, CHECK, ["a", "bad", "b"]) == [SUCCEEDED, dead, SUCCEEDED]


def test_collision_that_no_repetition_resolves_is_no_fault_of_the_content(harbor: Harbor) -> None:
    assert sorted(settled(harbor, UNIQUE, ["same", "same"]), key=str) == sorted(
        [SUCCEEDED, RELEASED], key=str
    )
