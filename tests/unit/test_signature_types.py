"""Types: a value comes back as it was, or is refused at enqueue."""

from __future__ import annotations

import dataclasses
import datetime
import subprocess
import sys
from collections.abc import Sequence
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskharbor.errors import PayloadError, PayloadTooLarge
from tests.unit.plans import Linked, case, comes_back, plan_for

# -- types ---------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


@dataclasses.dataclass
class Address:
    street: str
    since: datetime.date | None = None


@dataclasses.dataclass(eq=False)
class Incomparable:
    ratio: float
    at: datetime.datetime | None = None


class User(msgspec.Struct):
    id: UUID
    addresses: list[Address] = []


class Options(TypedDict):
    a: int
    b: NotRequired[str]


class Pair(NamedTuple):
    x: int
    y: str


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(alias="orderNumber")
    at: datetime.datetime
    total: Decimal = Decimal(0)
    blob: bytes = b""
    _cache: object = pydantic.PrivateAttr(default_factory=object)


class Strange(pydantic.BaseModel):
    number: int = pydantic.Field(validation_alias="in", serialization_alias="out")


@dataclasses.dataclass
class HoldsModel:
    orders: list[Order]


UserId = NewType("UserId", int)
ORDER = Order(orderNumber=1, at=datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), total=Decimal("1.50"))
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
numbers = st.floats(allow_nan=False, allow_infinity=False)
addresses = st.builds(Address, text, st.none() | st.dates())
EARLIEST, LATEST = datetime.datetime(2, 1, 1), datetime.datetime(9998, 1, 1)  # noqa: DTZ001
minutes = st.integers(-1439, 1439).map(lambda n: datetime.timezone(datetime.timedelta(minutes=n)))

TYPED = {
    int: st.integers(),
    float: numbers | st.integers(-(2**53), 2**53),
    str: text,
    bool: st.booleans(),
    bytes: st.binary(),
    Decimal: st.decimals(allow_nan=False),
    UUID: st.uuids(),
    datetime.datetime: st.datetimes() | st.datetimes(EARLIEST, LATEST, timezones=minutes),
    datetime.date: st.dates(),
    datetime.time: st.times(),
    datetime.timedelta: st.timedeltas(datetime.timedelta(days=-10000), datetime.timedelta(days=10000)),
    Colour: st.sampled_from(Colour),
    Level: st.just(Level.LOW),
    Address: addresses,
    User: st.builds(User, st.uuids(), st.lists(addresses, max_size=3)),
    Pair: st.builds(Pair, st.integers(), text),
    Options: st.fixed_dictionaries({"a": st.integers()}, optional={"b": text}),
    Literal["a", 5]: st.sampled_from(["a", 5]),
    int | str | None: st.none() | st.integers() | text,
    list[int]: st.lists(st.integers()),
    tuple[int, ...]: st.lists(st.integers()).map(tuple),
    tuple[int, str]: st.tuples(st.integers(), text),
    set[str]: st.sets(text),
    frozenset[int]: st.frozensets(st.integers()),
    dict[str, float]: st.dictionaries(text, numbers),
    dict[int, str]: st.dictionaries(st.integers(-(2**63), 2**63), text),
    dict[UUID, Colour]: st.dictionaries(st.uuids(), st.sampled_from(Colour)),
    Address | None: st.none() | addresses,
    UserId: st.integers(),
    Any: st.none() | st.integers() | text | st.lists(numbers),
    object: st.none() | st.integers() | text | st.lists(numbers),
    dict[str, object]: st.dictionaries(text, st.integers() | text),
}


@pytest.mark.parametrize("annotation", TYPED, ids=str)
def test_a_value_comes_back_as_it_was(annotation):
    plan = plan_for(annotation)

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(TYPED[annotation])
    def check(value):
        back = plan.decode(plan.encode((value,), {}))["value"]
        assert back == value
        if annotation is not float and annotation not in (Any, object):
            assert type(back) is type(value)

    check()


def test_a_datetime_in_a_payload_is_the_users_own_data():
    naive = datetime.datetime(2024, 5, 6, 7, 8, 9, 10)  # noqa: DTZ001
    assert comes_back(datetime.datetime, naive).tzinfo is None
    berlin = datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))  # exists twice
    back = comes_back(datetime.datetime, berlin)
    assert back.astimezone(datetime.UTC) == berlin.astimezone(datetime.UTC)


def test_an_int_is_a_float_but_only_where_nothing_is_lost():
    assert comes_back(float, 5) == 5.0
    with pytest.raises(PayloadError, match="would come back as"):
        plan_for(float).encode((2**53 + 1,), {})


def test_a_class_without_equality_and_a_linked_one_come_back():
    at = datetime.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    back = comes_back(Incomparable, Incomparable(2, at))
    assert (back.ratio, back.at.astimezone(datetime.UTC)) == (2.0, at.astimezone(datetime.UTC))
    with pytest.raises(PayloadError, match="at value.ratio: nan is no number"):
        plan_for(Incomparable).encode((Incomparable(float("nan")),), {})
    linked = Linked(1, Linked(2))
    assert comes_back(Linked, linked) == linked


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (
            int,
            "5",
            r"task 'email:send' cannot take these arguments: at value: expected `int`, got `str` \('5'\)",
        ),
        (int, True, "expected `int`, got `bool`"),
        (int, 5.0, "expected `int`, got `float`"),
        (int, None, "expected `int`, got `null`"),
        (str, 5, "expected `str`, got `int`"),
        (str, b"a", "would come back as"),
        (str, UUID(int=1), "would come back as"),
        (float, float("nan"), "at value: nan is no number"),
        (float | None, float("nan"), "at value: nan is no number"),
        (bool, 1, "expected `bool`"),
        (list[int], [1, "2"], r"at value\[1\]: expected `int`"),
        (list[int], (1, 2), r"\(tuple\) would come back as \[1, 2\] \(list\)"),
        (Sequence[int], (1, 2), "would come back as"),
        (tuple[int, ...], [1, 2], "would come back as"),
        (dict[str, int], {1: 2}, "would come back as text"),
        (Colour, "green", "invalid enum value"),
        (Colour, "red", "would come back as"),
        (Literal["a"], "b", "invalid enum value"),
        (Address, {"street": "a"}, "would come back as"),
        (Address, Address(5), "at value.street: expected `str`"),  # type: ignore[arg-type]
        (Options, {"a": 1, "c": 2}, "the key 'c' would be lost"),
        (Decimal, Decimal("NaN"), "would come back as"),
        (Decimal, Decimal("sNaN"), "would come back as"),
        (datetime.datetime, "yesterday", "invalid RFC3339"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "expected `int` >= 1"),
        (Any, object(), "at value: .* has no form in JSON"),
        (Any, "a\0", "at value: .*NUL"),
        (Any, "a\ud800", "at value: .*surrogate"),
        (str, "a\ud800", "at value: .*surrogate"),
        (Any, 10**5000, "4,300 digits"),
        (int, 10**5000, "4,300 digits"),
        (Any, (1,), "would come back as"),
        (Any, Address("a"), "would come back as"),
        (Any, ORDER, "would come back as"),
    ],
    ids=case,
)
def test_a_value_that_does_not_fit_is_refused_at_enqueue(annotation, value, words):
    with pytest.raises(PayloadError, match=words):
        plan_for(annotation).encode((value,), {})


def test_depth_circles_and_size_are_bounded():
    plan = plan_for(Any)
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = 1
    for _ in range(5000):
        deep = {"a": deep}
    endless = Linked(1)
    endless.next = endless
    for each, value in ((plan, circle), (plan, deep), (plan_for(Linked), endless)):
        with pytest.raises(PayloadError, match="nested deeper than 100 levels, or contains itself"):
            each.encode((value,), {})
    with pytest.raises(PayloadTooLarge, match="the payload of task 'email:send' takes 1,048,"):
        plan.encode(("x" * 1_048_576,), {})


# -- pydantic ------------------------------------------------------------------------------------


def test_a_pydantic_model_comes_back_by_its_aliases():
    assert plan_for(Order).encode((ORDER,), {}).startswith('{"value":{"orderNumber":1,')
    back = comes_back(Order, ORDER)
    assert type(back) is Order
    assert back.model_dump() == ORDER.model_dump()
    assert comes_back(Order | None, None) is None
    assert comes_back(HoldsModel, HoldsModel([ORDER])).orders[0].at == ORDER.at


def test_a_model_that_does_not_validate_says_where_without_quoting_the_input():
    with pytest.raises(
        PayloadError, match="at value: not a valid Order: orderNumber: .*; at: Field required"
    ) as caught:
        plan_for(Order).decode('{"value":{"orderNumber":"secret"}}')
    assert "secret" not in str(caught.value)


def test_a_model_that_cannot_read_what_it_writes_is_refused_at_enqueue():
    with pytest.raises(PayloadError, match="not a valid Strange"):
        plan_for(Strange).encode((Strange.model_validate({"in": 1}),), {})
    with pytest.raises(PayloadError, match="would come back as"):
        plan_for(Order).encode(({"orderNumber": 1, "at": "2024-01-02T00:00:00Z"},), {})


def test_pydantic_is_not_imported_for_tasks_that_do_not_use_it():
    code = (
        "import sys; from taskharbor.signature import CallPlan\n"
        "def f(a: int, b): ...\n"
        "plan = CallPlan.of(f, context_type=type); plan.decode(plan.encode((1, [2]), {}))\n"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
