"""Middleware wraps every execution, the first declared outermost."""

from __future__ import annotations

import asyncio

import pytest

from taskharbor import Unrecoverable
from taskharbor.records import Reason, State
from tests.worker.stage import statuses, the_job


@pytest.fixture(params=["async", "sync"])
def handler(request, harbor):
    """A task of either kind that notes its call and returns or raises."""
    order = []

    def body(fail: bool = False) -> str:
        order.append("handler")
        if fail:
            raise ValueError("broken")
        return "result"

    async def async_body(fail: bool = False) -> str:
        await asyncio.sleep(0)
        return body(fail)

    task = harbor.task(name="t", max_attempts=1)(async_body if request.param == "async" else body)
    task.order = order
    return task


async def test_the_first_declared_is_the_outermost(harbor, drained, handler):
    order = handler.order

    @harbor.middleware
    async def outer(ctx, call):
        order.append("outer in")
        result = await call()
        order.append("outer out")
        return result

    @harbor.middleware
    async def inner(ctx, call):
        order.append("inner in")
        result = await call()
        order.append("inner out")
        return result

    job = await handler.aenqueue()
    await drained(harbor)
    assert await job.aresult() == "result"
    assert order == ["outer in", "inner in", "handler", "inner out", "outer out"]


async def test_it_sees_the_context_and_may_change_the_result(harbor, drained, handler):
    @harbor.middleware
    async def tag(ctx, call):
        return f"{ctx.job.task}: {await call()}"

    job = await handler.aenqueue()
    await drained(harbor)
    assert await job.aresult() == "t: result"


async def test_it_sees_what_the_handler_raised_and_may_replace_it(harbor, drained, handler):
    seen = []

    @harbor.middleware
    async def translate(ctx, call):
        try:
            return await call()
        except ValueError as error:
            seen.append(str(error))
            raise Unrecoverable("translated") from error

    job = await handler.aenqueue(fail=True)
    await drained(harbor)
    found = await the_job(harbor, job)
    assert seen == ["broken"]
    assert (found.reason, found.error) == (Reason.UNRECOVERABLE, "Unrecoverable: translated")


async def test_it_may_make_a_failure_a_success(harbor, drained, handler):
    @harbor.middleware
    async def forgive(ctx, call):
        try:
            return await call()
        except ValueError:
            return "forgiven"

    job = await handler.aenqueue(fail=True)
    await drained(harbor)
    assert await job.aresult() == "forgiven"


async def test_what_it_raises_itself_fails_the_attempt_and_the_handler_is_not_called(
    harbor, drained, handler
):
    @harbor.middleware
    async def refuse(ctx, call):
        raise PermissionError("not today")

    job = await handler.aenqueue()
    await drained(harbor)
    found = await the_job(harbor, job)
    assert (found.state, found.error) == (State.DEAD, "PermissionError: not today")
    assert handler.order == []
    assert await statuses(job) == ["failed"]


async def test_it_may_skip_the_handler(harbor, drained, handler):
    @harbor.middleware
    async def skip(ctx, call):
        return "skipped"

    job = await handler.aenqueue()
    await drained(harbor)
    assert await job.aresult() == "skipped"
    assert handler.order == []


async def test_the_current_context_is_there(harbor, drained, handler):
    from taskharbor import current_context

    @harbor.middleware
    async def look(ctx, call):
        assert current_context() is ctx
        return await call()

    job = await handler.aenqueue()
    await drained(harbor)
    assert await job.aresult() == "result"
