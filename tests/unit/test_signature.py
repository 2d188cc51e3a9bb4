"""A call becomes a payload and a payload becomes the same call again."""

from __future__ import annotations

import dataclasses
import datetime
import functools
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskharbor.errors import ConfigurationError, PayloadError, PayloadTooLarge
from taskharbor.signature import CallPlan

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]


class Context:
    """Stands for the context that a worker injects."""


def case(value: object) -> str:
    """An id for pytest, which cannot make its own of hostile values."""
    return ascii(value)[1:40] if isinstance(value, str) else type(value).__name__


def plan_of(function: Callable[..., Any], **options: Any) -> CallPlan:
    options.setdefault("context_type", Context)
    options.setdefault("task", "email:send")
    return CallPlan.of(function, **options)


def plan_for(annotation: Any) -> CallPlan:
    def handler(value): ...

    handler.__annotations__["value"] = annotation
    return plan_of(handler)


def comes_back(annotation: Any, value: Any) -> Any:
    plan = plan_for(annotation)
    return plan.decode(plan.encode((value,), {}))["value"]


def send(to: str, subject: str = "hi", *, times: int = 1) -> tuple[str, str, int]:
    return (to, subject, times)


# -- reading a function --------------------------------------------------------------------------


def test_a_plan_knows_the_parameters_of_its_function():
    plan = plan_of(send)
    assert plan.parameters == ("to", "subject", "times")
    assert plan.required == ("to",)
    assert not plan.takes_context


def test_without_a_task_name_the_function_names_the_plan():
    assert CallPlan.of(send, context_type=Context).task == "send"


def test_a_first_parameter_of_type_context_is_injected_and_never_stored():
    def handler(ctx: Context, to: str):
        return ctx, to

    plan, context = plan_of(handler), Context()
    assert plan.takes_context
    assert plan.context_parameter == "ctx"
    assert plan.parameters == ("to",)
    stored = plan.encode(("a",), {})
    assert stored == '{"to":"a"}'
    assert plan.call(plan.decode(stored), context) == (context, "a")
    with pytest.raises(PayloadError, match="the worker injects it"):
        plan.bind(("a",), {"ctx": context})


def test_a_keyword_only_or_annotated_context_is_injected_too():
    def by_keyword(*, ctx: Context, to: str):
        return ctx, to

    def annotated(ctx: Annotated[Context, "x"], to: str):
        return ctx, to

    for handler in (by_keyword, annotated):
        assert plan_of(handler).call({"to": "a"}, 7) == (7, "a")


def test_a_function_without_context_is_called_without_it():
    assert plan_of(send).call({"to": "a", "times": 3}, Context()) == ("a", "hi", 3)


def test_a_context_anywhere_else_is_refused():
    def handler(to: str, ctx: Context): ...

    with pytest.raises(ConfigurationError, match=r"'email:send': 'ctx' is a Context, which must come first"):
        plan_of(handler)


def test_what_no_payload_can_name_is_refused():
    def many(*args): ...
    def named(**kwargs): ...
    def unnamed(a, /): ...

    for function, words in ((many, r"\*args"), (named, r"\*\*kwargs"), (unnamed, "positional-only 'a'")):
        with pytest.raises(ConfigurationError, match=f"'email:send': .*{words}.* cannot be a parameter"):
            plan_of(function)


def test_an_annotation_that_cannot_be_resolved_names_task_and_parameter():
    def handler(a: int, b: Unknown): ...

    with pytest.raises(
        ConfigurationError, match=r"'email:send': the annotation 'Unknown' of parameter 'b'.*NameError"
    ):
        plan_of(handler)


def test_a_return_annotation_need_not_resolve():
    def handler(a: int) -> Unknown: ...

    assert plan_of(handler).parameters == ("a",)


class Connection: ...


@dataclasses.dataclass
class HoldsConnection:
    inner: list[Connection]


@pytest.mark.parametrize(
    "annotation",
    [
        Connection,
        list[Connection],
        HoldsConnection,
        Callable[[], int],
        Iterable[int],
        complex,
        int | Connection,
    ],
    ids=case,
)
def test_a_type_that_json_cannot_carry_is_refused_when_the_task_is_declared(annotation):
    with pytest.raises(
        ConfigurationError, match="'email:send': parameter 'value' has .* cannot be stored as JSON"
    ):
        plan_for(annotation)


def test_a_union_that_json_could_not_tell_apart_is_refused():
    with pytest.raises(ConfigurationError, match="'email:send'"):
        plan_for(HoldsText | Linked)


def test_wrapped_partial_bound_and_callable_objects_work():
    @functools.wraps(send)
    def wrapped(*args, **kwargs):
        return send(*args, **kwargs)

    class Handler:
        def __call__(self, to: str): ...
        def method(self, to: str): ...

    assert plan_of(wrapped).parameters == ("to", "subject", "times")
    assert plan_of(functools.partial(send, "a")).parameters == ("subject", "times")
    assert plan_of(Handler()).parameters == ("to",)
    assert plan_of(Handler().method).parameters == ("to",)


def test_parameters_may_have_names_that_structs_use_themselves():
    def handler(self, cls, type: int, name="x", _private=1, __dunder=2): ...

    plan = plan_of(handler)
    stored = plan.encode((1, 2, 3), {"_private": 4})
    assert plan.decode(stored) == {"self": 1, "cls": 2, "type": 3, "_private": 4}


# -- binding -------------------------------------------------------------------------------------


def test_arguments_bind_as_in_a_call_and_defaults_are_not_stored():
    plan = plan_of(send)
    assert plan.bind(("a@b.c",), {"times": 2}) == {"to": "a@b.c", "times": 2}
    assert plan.encode(("a@b.c",), {"subject": "hi"}) == '{"to":"a@b.c","subject":"hi"}'
    assert plan.encode(("a@b.c",), {}) == '{"to":"a@b.c"}'


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, r"task 'email:send' needs 'to'; it takes \(to, subject=…, times=…\)"),
        (("a", "b", 3), {}, "takes 2 positional arguments, but 3 were given"),
        (("a",), {"to": "b"}, "got two values for 'to'"),
        (("a",), {"too": "b"}, "has no parameter 'too'; it takes"),
        (("a",), {5: "b"}, "has no parameter 5"),
    ],
    ids=case,
)
def test_arguments_that_do_not_fit_read_like_a_type_error(args, kwargs, words):
    with pytest.raises(PayloadError, match=words):
        plan_of(send).bind(args, kwargs)


def test_all_missing_arguments_are_named():
    def handler(a, b, c): ...

    with pytest.raises(PayloadError, match="needs 'a', 'b' and 'c'"):
        plan_of(handler).bind((), {})


def test_partial_binding_leaves_arguments_out_and_still_validates():
    plan = plan_of(send)
    assert plan.bind((), {"times": 2}, partial=True) == {"times": 2}
    assert plan.encode((), {"times": 2}, partial=True) == '{"times":2}'
    assert plan.encode((), {}, partial=True) == "{}"
    with pytest.raises(PayloadError, match="at times: expected `int`"):
        plan.encode((), {"times": "2"}, partial=True)
    with pytest.raises(PayloadError, match="no parameter"):
        plan.bind((), {"tims": 2}, partial=True)


@st.composite
def calls(draw):
    args = draw(st.lists(st.text(), max_size=2))
    names = ["to", "subject", "times"][len(args) :]
    kwargs = {
        name: draw(st.integers() if name == "times" else st.text()) for name in names if draw(st.booleans())
    }
    return args, kwargs


@settings(deadline=None)
@given(calls())
def test_binding_agrees_with_python(call):
    import inspect

    args, kwargs = call
    try:
        expected = dict(inspect.signature(send).bind(*args, **kwargs).arguments)
    except TypeError:
        with pytest.raises(PayloadError):
            plan_of(send).bind(args, kwargs)
    else:
        assert plan_of(send).bind(args, kwargs) == expected


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


@dataclasses.dataclass
class HoldsText:
    text: str


@dataclasses.dataclass
class Linked:
    value: int
    next: Linked | None = None


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


# -- decoding ------------------------------------------------------------------------------------


def test_a_parameter_left_out_keeps_the_functions_own_default():
    shared: list[int] = []

    def handler(a: int, seen: list = shared):
        return seen

    plan = plan_of(handler)
    assert plan.decode('{"a":1}') == {"a": 1}
    assert plan.call(plan.decode('{"a":1}'), None) is shared


def test_no_parameters_need_no_payload():
    def handler():
        return "done"

    plan = plan_of(handler)
    assert plan.encode((), {}) == "{}"
    assert plan.call(plan.decode("{}"), None) == "done"
    assert plan.decode(" { } ") == {}
    with pytest.raises(PayloadError, match=r"unknown field `a`; it takes no arguments"):
        plan.decode('{"a":1}')


def test_decoded_arguments_are_never_shared():
    plan = plan_of(lambda a=1: a)
    plan.decode("{}")["a"] = 2
    assert plan.decode("{}") == {}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        (
            "{}",
            r"the payload does not fit task 'email:send': object missing required field `to`; it takes \(to",
        ),
        ('{"to":"a","too":1}', "unknown field `too`"),
        ('{"to":5}', "at to: expected `str`, got `int`"),
        ('{"to":null}', "at to: expected `str`, got `null`"),
        ("[]", "expected `object`, got `array`"),
        ("", "truncated"),
        ('{"to":', "truncated"),
        ('{"to":NaN}', "malformed"),
        ('{"to":"a"} x', "malformed"),
        ('{"to":"\\ud800"}', "does not fit"),
        ('{"to":"\ud800"}', "does not fit"),
        ('{"to":' + "[" * 100_000, "does not fit"),
    ],
    ids=case,
)
def test_a_payload_that_does_not_fit_is_a_payload_error(payload, words):
    with pytest.raises(PayloadError, match=words):
        plan_of(send).decode(payload)


def test_deep_json_for_an_untyped_parameter_is_a_payload_error():
    with pytest.raises(PayloadError, match="nested deeper"):
        plan_for(Any).decode('{"value":' + "[" * 100_000 + "]" * 100_000 + "}")


@dataclasses.dataclass
class Exploding:
    x: int

    def __post_init__(self) -> None:
        if self.x > 1:
            raise KeyError("boom")


def test_whatever_a_types_own_code_raises_is_a_payload_error():
    with pytest.raises(PayloadError, match="boom") as caught:
        plan_for(Exploding).decode('{"value":{"x":5}}')
    assert isinstance(caught.value.__cause__, KeyError)


# -- aliases -------------------------------------------------------------------------------------


def test_an_old_parameter_name_in_a_payload_is_read_as_the_present_one():
    plan = plan_of(send, parameter_aliases={"recipient": "to", "address": "to", "count": "times"})
    assert plan.decode('{"recipient":"a"}') == {"to": "a"}
    assert plan.decode('{"count":2,"address":"a"}') == {"to": "a", "times": 2}
    assert plan.decode('{"to":"a"}') == {"to": "a"}


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ('{"recipient":"a","to":"b"}', "it holds 'recipient' and 'to', which are one parameter"),
        ('{"recipient":5}', "at to: expected `str`"),
        ('{"recipient":"a","x":1}', "unknown field `x`"),
        ('{"x":1}', "does not fit"),
        ("{", "truncated"),
        ("[1]", "expected `object`"),
    ],
    ids=case,
)
def test_an_alias_excuses_nothing_else(payload, words):
    with pytest.raises(PayloadError, match=words):
        plan_of(send, parameter_aliases={"recipient": "to"}).decode(payload)


def test_two_old_names_of_one_parameter_do_not_go_together():
    plan = plan_of(send, parameter_aliases={"recipient": "to", "address": "to"})
    with pytest.raises(PayloadError, match="which are one parameter"):
        plan.decode('{"recipient":"a","address":"b"}')


def test_a_caller_in_python_uses_the_present_name():
    plan = plan_of(send, parameter_aliases={"recipient": "to"})
    with pytest.raises(PayloadError, match="no parameter 'recipient' any more: it is called 'to' now"):
        plan.bind((), {"recipient": "a"})


@pytest.mark.parametrize(
    ("aliases", "words"),
    [({"old": "nothing"}, "which is no parameter"), ({"subject": "to"}, "present parameter")],
)
def test_an_alias_must_lead_from_an_unused_name_to_a_parameter(aliases, words):
    with pytest.raises(ConfigurationError, match=words):
        plan_of(send, parameter_aliases=aliases)


def test_a_method_is_refused_because_a_payload_cannot_carry_its_object():
    class Mailer:
        def send(self, to: str) -> None: ...

    with pytest.raises(ConfigurationError, match="is a method"):
        CallPlan.of(Mailer.send, context_type=Marker)


class Marker: ...
