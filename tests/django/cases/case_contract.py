"""What Django's tasks promise, kept by the backend."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from django.db import connections
from django.utils import timezone
from shop import tasks

from taskharbor.integrations.django import Backend, framework
from taskharbor.integrations.django.framework import (
    InvalidTask,
    TaskResultDoesNotExist,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)


def test_everything_is_supported():
    backend = task_backends["default"]
    assert isinstance(backend, Backend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_enqueued_task_is_ready_and_can_be_read_anywhere():
    before = timezone.now()
    result = tasks.gather.enqueue(1, (2, 3), key="value")
    assert (result.status, result.backend, len(result.id)) == ("READY", "default", 36)
    assert (result.args, result.kwargs) == ([1, [2, 3]], {"key": "value"})
    assert before - timedelta(seconds=60) < result.enqueued_at < timezone.now() + timedelta(seconds=60)
    assert (result.attempts, result.worker_ids, result.errors, result.started_at) == (0, [], [], None)
    found = []

    def read():
        found.append(tasks.gather.get_result(result.id))
        connections.close_all()

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == [result]


def test_executed_task_has_its_result(drain):
    plain, many, coroutine = (
        tasks.add.enqueue(1, b=2),
        tasks.gather.enqueue("a", None, x=[1.5]),
        tasks.double.enqueue(4),
    )
    drain()
    for result, value in ((plain, 3), (many, [["a", None], {"x": [1.5]}]), (coroutine, 8)):
        result.refresh()
        assert (result.status, result.return_value, result.is_finished) == ("SUCCESSFUL", value, True)
        assert (result.attempts, len(result.worker_ids), result.errors) == (1, 1, [])
        assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at


def test_asynchronous_forms(drain):
    async def enqueue():
        result = await tasks.double.aenqueue(21)
        await result.arefresh()
        return result, await tasks.double.aget_result(result.id)

    result, read = asyncio.run(enqueue())
    assert read == result
    drain()
    asyncio.run(result.arefresh())
    assert result.return_value == 42


def test_unknown_result_does_not_exist():
    for name in ("0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10", "no-uuid", ""):
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(name)


def test_job_that_is_no_task_of_django_does_not_exist():
    from taskharbor.integrations.django import get_harbor

    job = get_harbor().enqueue("http", {"url": "https://example.org/"})
    with pytest.raises(TaskResultDoesNotExist, match="http, which is no task of this project"):
        task_backends["default"].get_result(job.id)


def test_result_of_another_task_is_a_mismatch():
    result = tasks.add.enqueue(1)
    with pytest.raises(Exception, match="does not match"):
        tasks.double.get_result(result.id)


def test_higher_priority_runs_first(drain):
    for name, priority in (("low", -100), ("usual", 0), ("high", 100)):
        result = tasks.note.using(priority=priority).enqueue(name)
        assert result.task.priority == priority
        assert tasks.note.get_result(result.id).task.priority == priority
    drain(concurrency=1)
    assert tasks.seen == ["high", "usual", "low"]


def test_task_waits_for_its_run_after(drain):
    later = tasks.note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("later")
    earlier = tasks.note.using(run_after=timezone.now() - timedelta(hours=1)).enqueue("earlier")
    drain()
    later.refresh()
    earlier.refresh()
    assert (later.status, earlier.status, tasks.seen) == ("READY", "SUCCESSFUL", ["earlier"])
    assert tasks.note.get_result(later.id).task.run_after == later.task.run_after


def test_what_django_refuses_is_refused():
    from datetime import datetime

    with pytest.raises(InvalidTask, match="aware"):
        tasks.note.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidTask, match="Queue"):
        tasks.note.using(queue_name="unknown")
    with pytest.raises(InvalidTask, match="priority"):
        tasks.note.using(priority=101)
    with pytest.raises(TypeError):
        tasks.note.enqueue({1, 2})


def test_context_has_the_attempt(drain):
    result = tasks.send.enqueue("ana")
    drain()
    result.refresh()
    assert result.return_value == [1, result.id, "ana"]
    assert result.task.queue_name == "mail"


def test_retried_task_shows_every_attempt(drain):
    first, second = tasks.fails_once.enqueue(), tasks.fails_once_async.enqueue()
    while not (first.is_finished and second.is_finished):
        drain()
        first.refresh()
        second.refresh()
    assert (first.return_value, first.attempts, len(first.worker_ids)) == (2, 2, 2)
    assert (second.return_value, second.attempts) == ([2, 1], 2)
    [error] = first.errors
    assert error.exception_class is RuntimeError
    assert first.started_at < first.last_attempted_at


def test_failed_task_has_all_its_errors(drain):
    result = tasks.fails.enqueue("not today")
    while not result.is_finished:
        drain()
        result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 3)
    assert [error.exception_class for error in result.errors] == [ValueError] * 3
    trace = result.errors[-1].traceback
    assert "not today" in trace
    assert "tasks.py" in trace
    assert "taskharbor" not in trace.replace(tasks.__file__, "")  # only the project's own code is shown
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_unfit_result_fails_the_task_at_once(drain):
    result = tasks.unfit.enqueue()
    drain()
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert "JSON" in result.errors[0].traceback


def test_cancelled_task_has_failed():
    from taskharbor.integrations.django import get_harbor

    result = tasks.add.enqueue(1)
    get_harbor().jobs.cancel(result.id)
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 0)
    assert "cancelled" in result.errors[0].traceback
    assert issubclass(result.errors[0].exception_class, Exception)


def test_signals_tell_the_whole_story(drain):
    heard: list[tuple] = []
    lock = threading.Condition()

    def hear(signal, task_result, sender, **_):
        with lock:
            names = {task_enqueued: "enqueued", task_started: "started", task_finished: "finished"}
            heard.append((names[signal], task_result.id, str(task_result.status), sender))
            if signal is task_finished and task_result.status == "SUCCESSFUL":
                assert task_result.return_value is not None
                assert task_result.finished_at >= task_result.started_at
            lock.notify_all()

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(hear)
    try:
        results = {
            "fails": tasks.fails.enqueue("x"),
            "once": tasks.fails_once_async.enqueue(),
            "add": tasks.add.enqueue(1),
        }
        while not all(result.is_finished for result in results.values()):
            drain()
            for result in results.values():
                result.refresh()
        with lock:
            assert lock.wait_for(lambda: sum(each[0] == "finished" for each in heard) == 3, 60)
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(hear)
    assert {each[3] for each in heard} == {Backend}
    stories = {
        name: [(each[0], each[2]) for each in heard if each[1] == result.id]
        for name, result in results.items()
    }
    begin, again = ("enqueued", "READY"), ("started", "RUNNING")
    assert stories["add"] == [begin, again, ("finished", "SUCCESSFUL")]
    assert stories["once"] == [begin, again, again, ("finished", "SUCCESSFUL")]
    assert stories["fails"] == [begin, again, again, again, ("finished", "FAILED")]


def test_receiver_that_fails_does_not_fail_the_task(drain):
    def fail(**_):
        raise RuntimeError("of the receiver")

    task_started.connect(fail)
    try:
        result = tasks.add.enqueue(1)
        drain()
    finally:
        task_started.disconnect(fail)
    result.refresh()
    assert result.status == "SUCCESSFUL"


def test_connections_are_closed_around_handlers(drain):
    results = [tasks.count_orders.enqueue(), tasks.acount_orders.enqueue()]
    drain()
    for result in results:
        result.refresh()
        assert result.return_value == 0
    assert len(tasks.seen) == 2
    assert [wrapper.connection for wrapper in tasks.seen] == [None, None]


def test_task_in_a_module_that_nothing_imported_is_found(drain):
    import sys

    from taskharbor.integrations.django import get_harbor

    sys.modules.pop("shop.elsewhere", None)
    job = get_harbor().enqueue("shop.elsewhere.hidden", {"args": [], "kwargs": {}})
    drain()
    assert get_harbor().jobs.get(job.id).result(timeout=0) == "found"


def test_module_outside_of_the_installed_apps_is_not_imported(drain):
    import sys

    from taskharbor.integrations.django import get_harbor

    assert "this" not in sys.modules
    assert get_harbor().tasks.get("this.s") is None
    assert "this" not in sys.modules


@pytest.mark.skipif(
    framework.PACKAGE == "django.tasks" and __import__("django").VERSION < (6, 1),
    reason="@task of Django 6.0 takes no further options",
)
def test_task_declares_options_of_the_backend(drain):
    from shop.optional import declare, patient

    from taskharbor.integrations.django import get_harbor

    result = patient.enqueue()
    job = get_harbor().jobs.get(result.id)
    assert (job.timeout, job.max_attempts, str(job.delivery)) == (60, 7, "at_most_once")
    drain()
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 1)  # retry=None: the first failure is the last
    with pytest.raises(InvalidTask, match="timeout"):
        declare(timeout=-1)
    with pytest.raises(TypeError, match="unknown_option"):
        declare(unknown_option=1)
