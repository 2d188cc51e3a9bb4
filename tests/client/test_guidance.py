"""What a newcomer writes from habit, and what the error tells them to write instead."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from taskharbor import ConfigurationError, Harbor, PayloadError, chain
from taskharbor.client.options import _HABITS, OPTION_NAMES, TASK_OPTIONS


def said(way: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as caught:
        way()
    return str(caught.value)


# -- methods --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "instead"),
    [
        ("delay", "enqueue(…)"),
        ("send", "enqueue(…)"),
        ("defer_async", "await aenqueue(…)"),
        ("apply_async", "using(delay=60).enqueue(…)"),
    ],
)
def test_a_method_of_another_library_names_ours(harbor: Harbor, method: str, instead: str):
    task = harbor.task(name="send")(lambda: None)
    for thing in (task, task.using(queue="mail")):
        assert not hasattr(thing, method)
        with pytest.raises(AttributeError, match=f"no attribute '{method}'; to make a job") as caught:
            getattr(thing, method)
        assert str(caught.value).endswith(f"write {instead}")
    with pytest.raises(AttributeError, match=r"write enqueue\(\)$"):
        getattr(chain(task.s()), method)


def test_an_attribute_that_no_library_has_is_plainly_missing(harbor: Harbor):
    task = harbor.task(name="send")(lambda: None)
    for thing in (task, task.using(queue="mail"), chain(task.s())):
        with pytest.raises(AttributeError, match="object has no attribute 'nonsense'$"):
            getattr(thing, "nonsense")  # noqa: B009 - type checkers would refuse it


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("cron", "schedule"),
        ("every", "schedule"),
        ("retries", "max_retries"),
        ("max_tries", "max_attempts"),
        ("time_limit", "timeout"),
        ("retry_backoff", "retry"),
        ("queue_name", "queue"),
        ("acks_late", "delivery"),
        ("tz", "timezone"),
        ("task_name", "name"),
        ("prioritty", "priority"),
        ("Queue", "queue"),
    ],
)
def test_a_declaration_names_the_option_that_is_meant(harbor: Harbor, option: str, meant: str):
    wrong: Any = {option: "x"}
    told = said(lambda: harbor.task(**wrong))
    assert told.startswith(
        f"unknown option {option}: did you mean {meant}? The options are aliases, dead_letter"
    )
    assert "run_at" not in told  # no declaration takes it
    assert len(told) < 500


@pytest.mark.parametrize(
    ("option", "meant"),
    [("countdown", "delay"), ("eta", "run_at"), ("expires", "expires_at"), ("task_id", "id")],
)
def test_what_belongs_to_one_job_is_not_declared(harbor: Harbor, option: str, meant: str):
    wrong: Any = {option: 5}
    remedy = f"{meant} belongs to one job, not to a task; give it with .using({meant}=…)"
    assert said(lambda: harbor.task(**wrong)) == f"unknown option {option}: {remedy}"


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("countdown", "unknown option countdown: did you mean delay? The options are"),
        ("eta", "unknown option eta: did you mean run_at?"),
        ("job_id", "unknown option job_id: did you mean id?"),
        (
            "cron",
            "unknown option cron: schedule belongs to a task, not to one job; declare it: @harbor.task(schedule=…)",
        ),
        ("schedule", "schedule belongs to a task, not to one job; declare it: @harbor.task(schedule=…)"),
        ("at", "unknown option at: did you mean run_at?"),
        (
            "bind",
            "unknown option bind: a function whose first parameter is annotated with Context is given it",
        ),
        ("nonsense", "unknown option nonsense; the options are correlation_id, delay,"),
    ],
)
def test_an_enqueue_names_the_option_that_is_meant(harbor: Harbor, option: str, told: str):
    task = harbor.task(name="t")(lambda: None)
    wrong: Any = {option: 5}
    assert said(lambda: harbor.enqueue("t", {}, **wrong)).startswith(told)
    assert said(lambda: task.using(**wrong)).startswith(told)


def test_several_wrong_options_are_told_at_once(harbor: Harbor):
    wrong: Any = {"Queue": "a", "retries": 3}
    told = said(lambda: harbor.enqueue("t", {}, **wrong))
    assert told.startswith("unknown options Queue, retries: did you mean queue, max_retries? The options are")


def test_every_habit_leads_to_an_option_that_exists():
    assert _HABITS.keys() <= OPTION_NAMES | TASK_OPTIONS
    habits = [habit for each in _HABITS.values() for habit in each.split()]
    assert len(habits) == len(set(habits))
    assert not set(habits) & (OPTION_NAMES | TASK_OPTIONS)


# -- keywords of what acts on jobs ------------------------------------------------------------------


def test_a_wrong_keyword_names_the_ones_that_there_are(harbor: Harbor):
    job = harbor.enqueue("t")
    assert said(lambda: harbor.jobs.update(job.id, prio=5)).startswith(  # type: ignore[call-arg]
        "unknown option prio: did you mean priority? The options are expires_at,"
    )
    for bulk in (
        harbor.dlq.requeue_all,
        harbor.dlq.discard_all,
        harbor.jobs.cancel_all,
        harbor.jobs.delete_all,
        harbor.jobs.list,
        harbor.jobs.count,
    ):
        assert said(lambda bulk=bulk: bulk(quue="mail")) == (  # type: ignore[misc]
            "unknown filter quue: did you mean queue? The filters are correlation_id, enqueued_after, "
            "enqueued_before, error, fingerprint, finished_after, finished_before, ids, payload, queue, reason, state, "
            "tag, task, workflow"
        )
    assert harbor.jobs.get(job.id).state == "ready"


def test_a_wrong_keyword_is_told_of_the_method_that_was_called(harbor: Harbor):
    with pytest.raises(TypeError) as caught:
        harbor.jobs.history("x", lmit=1)  # type: ignore[call-arg]
    text = str(caught.value)
    assert "Jobs.history() got an unexpected keyword argument 'lmit'" in text
    assert text.endswith("it takes id, limit")
    with pytest.raises(
        TypeError, match=r"Jobs.get\(\) missing 1 required positional argument: 'id'; it takes id$"
    ):
        harbor.jobs.get()  # type: ignore[call-arg]


# -- signatures -------------------------------------------------------------------------------------


@dataclass
class Order:
    number: int


def test_arguments_of_a_signature_are_checked_when_they_are_given(harbor: Harbor):
    @harbor.task(name="ship")
    def ship(order: Order, to: str, copies: int = 1) -> None: ...

    with pytest.raises(PayloadError, match="at order: expected `object`, got `int`"):
        ship.s(5)
    with pytest.raises(PayloadError, match="at copies: expected `int`, got `str`"):
        ship.s(copies="two")
    with pytest.raises(PayloadError, match="has no parameter 'too'"):
        ship.s(too="x")
    with pytest.raises(PayloadError, match="has no form in JSON"):
        ship.s(to=object())
    with pytest.raises(PayloadError, match="at to: expected `str`"):
        ship.si(Order(1), 5)  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="at copies"):
        ship.using(priority=5).s(copies=None)
    assert ship.s(to="Ada").arguments == {"to": "Ada"}  # the rest may come from the step before
    assert ship.s().payload == "{}"


def test_a_signature_whose_arguments_are_missing_is_refused_where_nothing_can_fill_them(harbor: Harbor):
    @harbor.task(name="ship")
    def ship(order: Order, to: str) -> None: ...

    with pytest.raises(PayloadError, match="task 'ship' needs 'to'; it takes"):
        harbor.enqueue_many([ship.s(Order(1))])
    with pytest.raises(PayloadError, match="needs 'order', 'to'"):
        chain(ship.s()).enqueue()
    assert harbor.jobs.list() == []


def test_what_a_signature_was_given_is_what_is_stored(harbor: Harbor):
    @harbor.task(name="sum")
    def total(numbers: list[int], start: int = 0) -> int:
        return sum(numbers, start)

    [job, again] = harbor.enqueue_many([total.s([1, 2]), total.si([3], start=4)])
    assert (job.payload, again.payload) == ({"numbers": [1, 2]}, {"numbers": [3], "start": 4})


# -- transactions -------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Any:
    with Harbor(f"sqlite:///{tmp_path}/shop.db") as harbor:
        harbor.migrate()
        yield harbor


def test_a_transaction_is_entered_by_async_with_as_well(shop: Harbor, tmp_path: Path):
    async def story(connection: sqlite3.Connection) -> tuple[str, str]:
        async with shop.transaction(connection):
            kept = await shop.aenqueue("t")
        connection.commit()
        with pytest.raises(RuntimeError, match="no"):
            async with shop.transaction(connection):
                lost = await shop.aenqueue("t")
                raise RuntimeError("no")
        connection.rollback()
        return kept.id, lost.id

    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        kept, _ = asyncio.run(story(connection))
    assert [job.id for job in shop.jobs.list()] == [kept]


def test_each_block_of_a_transaction_is_its_own(shop: Harbor, tmp_path: Path):
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        block = shop.transaction(connection)
        with block, pytest.raises(ConfigurationError, match="is entered already; call harbor.transaction"):
            block.__enter__()
        with block:  # once it is left, it can be entered again
            shop.enqueue("t")
        connection.commit()
    assert shop.jobs.counts()["ready"] == 1


def test_a_connection_that_cannot_take_part_is_refused_by_async_with_as_well(shop: Harbor):
    async def story() -> None:
        async with shop.transaction("a connection"):
            raise AssertionError("never entered")

    with pytest.raises(ConfigurationError, match=r"takes a connection to the harbor's database, .*, not str"):
        asyncio.run(story())
