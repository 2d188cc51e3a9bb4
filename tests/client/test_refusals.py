"""Bad input: one clear error each, and nothing changed."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pytest

from taskharbor import ConfigurationError, Harbor, PayloadError, PayloadTooLarge, TaskHarborError

NAIVE = datetime.datetime(2026, 1, 1)  # noqa: DTZ001
AWARE = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HUGE = 10**5000
EARLY, LATE = (datetime.timezone(datetime.timedelta(hours=hours)) for hours in (-14, 14))
NAN, INFINITY = float("nan"), float("inf")

circular: dict[str, Any] = {}
circular["itself"] = circular
deep: Any = []
for _ in range(200):
    deep = [deep]


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("even this")


BAD_NAMES = [
    ("", "it is empty"),
    ("x" * 10_240, "10,240 bytes of UTF-8, and the limit is"),
    ("ü" * 600, "1,200 bytes of UTF-8"),
    ("a\0b", "control character"),
    ("a\nb", "control character"),
    ("\x7f", "control character"),
    ("\ud800", "lone surrogate"),
    ("a\udfffb", "lone surrogate"),
    (" a", "begins or ends with whitespace"),
    ("a\u2003", "begins or ends with whitespace"),
    (5, "is text, not 5"),
    (b"a", "is text, not b'a'"),
    (["a"], "is text"),
    (Hostile(), "is text, not <Hostile"),
]
NAMED = ["queue", "idempotency_key", "correlation_id"]

OPTIONS: list[tuple[dict[str, Any], str]] = [
    *[({option: bad}, said) for option in NAMED for bad, said in BAD_NAMES],
    *[({"tags": [bad]}, said) for bad, said in BAD_NAMES],
    ({"tags": "abc"}, "tags must be a list of strings, not 'abc'"),
    ({"tags": 5}, "tags must be a list"),
    ({"tags": {"a": 1}}, "tags must be a list"),
    ({"tags": [f"t{n}" for n in range(33)]}, "at most 32 tags, not 33"),
    ({"nonsense": 1}, "unknown option nonsense; the options are"),
    ({"Queue": "a", "retries": 3}, "unknown options Queue, retries"),
    ({"max_attempts": 3, "max_retries": 2}, "both given"),
    ({"max_attempts": -1}, "max_attempts must be an integer from 0 to 10000"),
    ({"max_attempts": 10_001}, "max_attempts must be"),
    ({"max_attempts": 1.0}, "max_attempts must be"),
    ({"max_attempts": True}, "max_attempts must be"),
    ({"max_attempts": HUGE}, "max_attempts cannot be an integer of 16,610 bits"),
    ({"max_retries": 10_000}, "max_retries must be an integer from 0 to 9999"),
    ({"max_retries": "3"}, "max_retries must be"),
    ({"timeout": 0}, "timeout must be more than 0"),
    ({"timeout": -0.0}, "timeout must be more than 0"),
    ({"timeout": -1}, "timeout must be a number of seconds"),
    ({"timeout": NAN}, "timeout must be a number of seconds"),
    ({"timeout": INFINITY}, "timeout must be a number of seconds"),
    ({"timeout": True}, "timeout must be a number of seconds"),
    ({"timeout": "5"}, "timeout must be a number of seconds"),
    ({"timeout": HUGE}, "timeout cannot be an integer"),
    ({"timeout": datetime.timedelta(seconds=-5)}, "timeout must be a number of seconds"),
    ({"timeout": decimal.Decimal(5)}, "timeout must be a number of seconds"),
    ({"delay": -1}, "delay must be a number of seconds"),
    ({"delay": -1e-9}, "delay must be a number of seconds"),
    ({"delay": NAN}, "delay must be a number of seconds"),
    ({"delay": INFINITY}, "delay must be a number of seconds"),
    ({"delay": 1e300}, "delay must be a number of seconds"),
    ({"delay": HUGE}, "delay cannot be an integer"),
    ({"delay": "60"}, "delay must be a number of seconds"),
    ({"run_at": NAIVE}, "run_at must be an aware datetime.*no time zone"),
    ({"run_at": AWARE.date()}, "run_at must be an aware datetime"),
    ({"run_at": 1767225600}, "run_at must be an aware datetime"),
    ({"run_at": HUGE}, "run_at cannot be an integer"),
    ({"run_at": "2026-01-01T00:00:00Z"}, "run_at must be an aware datetime"),
    ({"run_at": AWARE, "delay": 5}, "run_at and delay say the same thing"),
    (
        {"run_at": datetime.datetime.max.replace(tzinfo=EARLY)},
        "run_at must be between the years 1 and 9999 in UTC",
    ),
    ({"expires_at": datetime.datetime.min.replace(tzinfo=LATE)}, "expires_at must be between the years"),
    ({"expires_at": NAIVE}, "expires_at must be an aware datetime"),
    ({"expires_at": 60}, "expires_at must be an aware datetime"),
    ({"expires_in": 0}, "expires_in must be more than 0 seconds"),
    ({"expires_in": -5}, "expires_in must be a number of seconds above 0, up to 3153600000, not -5"),
    ({"expires_in": "1h"}, "expires_in"),
    ({"expires_in": 60, "expires_at": AWARE}, "expires_at and expires_in say the same thing"),
    ({"priority": 101}, "priority must be a whole number from -100 to 100"),
    ({"priority": -101}, "priority must be"),
    ({"priority": True}, "priority must be"),
    ({"priority": 1.0}, "priority must be"),
    ({"priority": "high"}, "priority must be"),
    ({"priority": HUGE}, "priority cannot be an integer"),
    ({"delivery": "exactly_once"}, 'delivery must be "at_least_once" or "at_most_once"'),
    ({"delivery": 1}, "delivery must be"),
    ({"delivery": ""}, "delivery must be"),
    ({"retry": "EMAIL"}, "retry must be a RetryPolicy"),
    ({"retry": 3}, "retry must be a RetryPolicy"),
    ({"retry": {"max_attempts": 3}}, "retry must be a RetryPolicy"),
    ({"id": "5"}, "a job's id is a UUID"),
    ({"id": 5}, "a job's id is a UUID"),
    ({"id": ""}, "a job's id is a UUID"),
    ({"id": b"0" * 16}, "a job's id is a UUID"),
    ({"id": Hostile()}, "a job's id is a UUID"),
    ({"id": HUGE}, "id cannot be an integer"),
]


def shown(value: object) -> str | None:
    return ascii(value)[:60] if isinstance(value, dict) and not any(map(hostile, value.values())) else None


def hostile(value: object) -> bool:
    return isinstance(value, Hostile | list) or (isinstance(value, int) and value.bit_length() > 1000)


@pytest.fixture
def kept(harbor: Harbor) -> Harbor:
    """A harbor with something in it that must not change."""
    harbor.enqueue("t", {"x": 1}, queue="a", tags=["t"], idempotency_key="k")
    harbor.enqueue("t", delay=3600)
    return harbor


@pytest.mark.parametrize(("options", "said"), OPTIONS, ids=shown)
def test_a_bad_option_is_one_clear_error_and_nothing_changes(
    kept: Harbor, options: dict[str, Any], said: str, everything: Callable[[Harbor], Any]
):
    task = kept.task(name="task")(lambda x=0: None)
    before = everything(kept)
    ways: list[Callable[[], Any]] = [
        lambda: kept.enqueue("t", {}, **options),
        lambda: task.using(**options),
    ]
    for way in ways:
        with pytest.raises(ConfigurationError, match=said) as caught:
            way()
        assert len(str(caught.value)) < 500
        assert "\0" not in str(caught.value)
        str(caught.value).encode()  # it can be printed
    assert everything(kept) == before


async def test_bad_options_are_refused_by_the_async_form_as_well(kept: Harbor):
    with pytest.raises(ConfigurationError, match="priority must be"):
        await kept.aenqueue("t", priority=101)
    assert (await kept.jobs.acounts())["ready"] == 1


PAYLOADS: list[tuple[Any, str]] = [
    ({"x": NAN}, "at x: nan is no number in JSON"),
    ({"x": [1, {"y": INFINITY}]}, r"at x\[1\].y: inf is no number in JSON"),
    ({"x": -INFINITY}, "-inf is no number in JSON"),
    (circular, "nested deeper than 100 levels, or contains itself"),
    ({"x": deep}, "nested deeper than 100 levels"),
    ({"x": object()}, "has the type object, which has no form in JSON"),
    ({"x": Hostile()}, "Hostile"),
    ({"x": print}, "has no form in JSON"),
    ({"x": 1j}, "has no form in JSON"),
    ({"x": "a\0b"}, "NUL character"),
    ({"a\0b": 1}, "NUL character"),
    ({"x": "\ud800"}, "lone surrogate"),
    ({"\ud800": 1}, "lone surrogate"),
    ({"x": (1, 2)}, "would come back as"),
    ({"x": {1, 2}}, "would come back as"),
    ({"x": b"bytes"}, "would come back as"),
    ({"x": AWARE}, "would come back as"),
    ({"x": {1: "a"}}, "in JSON every key is"),
    ({5: 1}, "in JSON every key is"),
    ({None: 1}, "key"),
    ({"x": HUGE}, "more than 4,300 digits"),
    ([1], "a payload is a JSON object, not"),
    ([], "a payload is a JSON object, not"),
    ("", "a payload is a JSON object, not"),
    ('{"x": 1}', "a payload is a JSON object, not"),
    (5, "a payload is a JSON object, not"),
    (0, "a payload is a JSON object, not"),
    (False, "a payload is a JSON object, not"),
]


@pytest.mark.parametrize("number", range(len(PAYLOADS)))
def test_a_bad_payload_is_one_clear_error_and_nothing_changes(
    kept: Harbor, number: int, everything: Callable[[Harbor], Any]
):
    payload, said = PAYLOADS[number]
    before = everything(kept)
    with pytest.raises(PayloadError, match=said) as caught:
        kept.enqueue("t", payload)
    assert len(str(caught.value)) < 1000
    str(caught.value).encode()
    assert everything(kept) == before


@pytest.mark.parametrize(
    "number", [n for n, (p, _) in enumerate(PAYLOADS) if isinstance(p, dict) and "x" in p]
)
def test_a_bad_argument_is_one_clear_error_and_nothing_changes(
    kept: Harbor, number: int, everything: Callable[[Harbor], Any]
):
    task = kept.task(name="task")(lambda x: None)
    before = everything(kept)
    for way in (task.enqueue, lambda x: task.enqueue_many([{"x": 1}, {"x": x}])):
        with pytest.raises(PayloadError):
            way(PAYLOADS[number][0]["x"])
    assert everything(kept) == before


def test_a_payload_over_the_limit_is_refused_with_what_to_do(
    kept: Harbor, everything: Callable[[Harbor], Any]
):
    before = everything(kept)
    with pytest.raises(
        PayloadTooLarge, match=r"1,048,58\d bytes.*limit is 1,048,576; store the data elsewhere"
    ):
        kept.enqueue("t", {"x": "y" * 1_048_576})
    with pytest.raises(PayloadTooLarge):
        kept.enqueue("t", {"x": "ü" * 600_000})
    assert everything(kept) == before


@pytest.mark.parametrize(("name", "said"), BAD_NAMES, ids=lambda v: None)
def test_a_bad_task_name_is_one_clear_error(kept: Harbor, name: Any, said: str):
    with pytest.raises(ConfigurationError, match=said):
        kept.enqueue(name)
    with pytest.raises(ConfigurationError, match=said):
        kept.task(name=name)(lambda: None)
    assert kept.tasks == {}
    assert sum(kept.jobs.counts().values()) == 2


def test_every_refusal_is_an_error_of_ours_and_a_value_error():
    for kind in (ConfigurationError, PayloadError):
        assert issubclass(kind, TaskHarborError)
        assert issubclass(kind, ValueError)
