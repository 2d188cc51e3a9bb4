"""A raw task takes its whole payload, by every way in, and its handler decides what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from taskharbor import ConfigurationError, Context, Harbor, PayloadError, RetryPolicy, Worker
from taskharbor.records import Reason

REFUSING = RetryPolicy(max_attempts=3, never_retry_on=["validation error"])


@pytest.fixture
def harbor() -> Harbor:
    return Harbor("memory://")


async def test_handler_gets_the_payload_as_it_is_and_decides(harbor: Harbor):
    taken: list[Any] = []

    @harbor.task(name="pay", raw=True, retry=REFUSING)
    async def pay(ctx: Context, payload: dict[str, Any]) -> str:
        taken.append((ctx.retry_count, payload))
        if not isinstance(payload.get("user_id"), str):
            raise ValueError("validation error: missing user_id")
        return "paid"

    good = await pay.aenqueue(payload={"user_id": "u", "payload": [1], "ctx": {"deep": None}})
    await harbor.aenqueue("pay", {"user_id": "v", "anything": 1})
    await pay.aenqueue_many([{"payload": {"user_id": "w"}}, {"payload": {}}])
    await harbor.aenqueue_many([pay.s({"user_id": "x"}), pay.si(payload={"amount": 5})])
    await Worker(harbor).drain()
    assert [each for _, each in taken] == [
        {"user_id": "u", "payload": [1], "ctx": {"deep": None}},
        {"user_id": "v", "anything": 1},
        {"user_id": "w"},
        {},
        {"user_id": "x"},
        {"amount": 5},
    ]
    assert (await good.arefresh()).payload == {"user_id": "u", "payload": [1], "ctx": {"deep": None}}
    dead = await harbor.dlq.alist()
    assert [(each.reason, each.error) for each in dead] == [
        (Reason.NOT_RETRYABLE, "ValueError: validation error: missing user_id")
    ] * 2


def test_function_itself_is_called_as_it_is_written(harbor: Harbor):
    @harbor.task(raw=True)
    def pay(payload: dict[str, Any]) -> int:
        return len(payload)

    assert pay({"a": 1}) == 1


def test_other_signatures_are_refused(harbor: Harbor):
    def none() -> None: ...
    def two(payload: dict[str, Any], more: int) -> None: ...
    def text(payload: str) -> None: ...
    def numbers(payload: dict[str, int]) -> None: ...

    for function in (none, two, text, numbers):
        with pytest.raises(ConfigurationError, match="raw=True, and takes .*payload: dict"):
            harbor.task(raw=True)(function)

    with pytest.raises(ConfigurationError, match="parameter_aliases cannot go with raw=True"):

        @harbor.task(raw=True, parameter_aliases={"a": "payload"})
        def aliased(payload: dict[str, Any]) -> None: ...

    with pytest.raises(ConfigurationError, match="raw must be True or False"):
        harbor.task(name="x", raw="yes")(lambda payload: None)  # type: ignore[call-overload]


def test_what_is_no_payload_is_refused(harbor: Harbor):
    @harbor.task(raw=True)
    def pay(payload: dict[str, Any]) -> None: ...

    with pytest.raises(PayloadError, match="takes its whole payload"):
        pay.s()
    with pytest.raises(PayloadError, match="takes its whole payload"):
        pay.enqueue({"a": 1}, more=2)  # type: ignore[call-arg]
    with pytest.raises(PayloadError, match="a payload is a JSON object"):
        pay.enqueue("text")  # type: ignore[arg-type]
    with pytest.raises(PayloadError, match="cannot be stored"):
        pay.enqueue({"a": object()})
