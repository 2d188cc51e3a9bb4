"""What None means among the options of an enqueue."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from taskharbor import ConfigurationError, Harbor

DECLARED: dict[str, Any] = {
    "queue": "mail",
    "priority": 4,
    "timeout": 30,
    "max_attempts": 3,
    "delivery": "at_most_once",
    "tags": ["x"],
    "meta": {"tenant": "acme"},
}


@pytest.mark.parametrize("option", [*DECLARED, "max_retries"])
def test_none_for_what_the_task_declares_is_refused(harbor: Harbor, option: str):
    @harbor.task(name="t", **DECLARED)
    def t() -> None: ...

    refused = pytest.raises(ConfigurationError, match=f"{option}=None does not lift the {option}")
    given: dict[str, Any] = {option: None}
    with refused:
        t.using(**given)
    with refused:
        t.using(run_at=None).using(**given)
    with refused:
        harbor.enqueue("t", **given)
    assert harbor.jobs.list() == []


@pytest.mark.parametrize("option", [*DECLARED, "max_retries"])
def test_none_for_what_nobody_declares_is_as_if_left_out(harbor: Harbor, option: str):
    @harbor.task
    def t() -> None: ...

    given: dict[str, Any] = {option: None}
    plain, job = t.enqueue(), t.using(**given).enqueue()
    assert job.refresh().record.options == plain.record.options
    assert (job.queue, job.priority, job.delivery) == (plain.queue, plain.priority, plain.delivery)


def test_none_takes_back_what_belongs_to_one_job(harbor: Harbor):
    @harbor.task
    def t() -> None: ...

    later = datetime(2100, 1, 1, tzinfo=UTC)
    first = t.using(run_at=later, expires_at=later, idempotency_key="k", correlation_id="c")
    job = first.using(run_at=None, expires_at=None, idempotency_key=None, correlation_id=None).enqueue()
    assert (job.state, job.expires_at, job.idempotency_key, job.correlation_id) == ("ready", None, None, None)
    assert t.using(delay=60).using(delay=None).enqueue().state == "ready"
    assert t.using(run_at=later).using(delay=None).enqueue().run_at == later
    assert t.using(delay=60).using(run_at=None).enqueue().state == "scheduled"


def test_none_for_one_jobs_own_name_is_no_name_for_many(harbor: Harbor):
    @harbor.task
    def t() -> None: ...

    jobs = t.using(id=None, idempotency_key=None).enqueue_many([{}, {}])
    assert len({job.id for job in jobs}) == 2
