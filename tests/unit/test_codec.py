"""What a payload, a result, a stored text and a name may hold."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import uuid
from collections import OrderedDict
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskharbor import codec
from taskharbor.errors import ConfigurationError, PayloadError, PayloadTooLarge

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=20,
)


class Colour(StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


def case(value: object) -> str:
    """An id for pytest, which cannot make its own of hostile values."""
    return ascii(value)[1:40] if isinstance(value, str) else type(value).__name__


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def circular() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


def wide_circle() -> Any:
    value: list[Any] = []
    value.extend([value] * 1000)
    return value


# -- payloads ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.dictionaries(text, json_values))
def test_any_json_object_comes_back_as_it_was(payload):
    assert codec.decode_payload(codec.encode_payload(payload)) == payload


@settings(deadline=None)
@given(st.integers(min_value=-(10**4200), max_value=10**4200))
def test_integers_of_any_size_come_back_exactly(number):
    assert codec.decode_payload(codec.encode_payload({"n": number})) == {"n": number}


def test_a_payload_is_readable_json():
    assert codec.encode_payload({"to": "ä@b.c", "n": 1}) == '{"to":"ä@b.c","n":1}'


def test_every_mapping_and_subclass_of_plain_values_is_taken_as_what_it_is():
    payload = MappingProxyType({"a": OrderedDict(x=1), "b": Colour.RED, "c": Text("t")})
    assert codec.encode_payload(payload) == '{"a":{"x":1},"b":"red","c":"t"}'


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "at x.y: nan is no number"),
        (float("inf"), "at x.y: inf is no number"),
        ([1, float("-inf")], r"at x.y\[1\]: -inf is no number"),
        ("a\0b", "at x.y: .*NUL"),
        ({"a\0b": 1}, "at x.y: the key .*NUL"),
        ("a\ud800", "at x.y: .*lone surrogate"),
        ({"a\ud800": 1}, "at x.y: the key .*lone surrogate"),
        (10**5000, "at x.y: an integer of more than 4,300 digits"),
        (nested(codec.NESTING_LIMIT), "nested deeper than 100 levels"),
        (nested(100_000), "nested deeper than 100 levels"),
        (circular(), "contains itself"),
        (wide_circle(), "contains itself"),
        (object(), "at x.y: <object object.* has no form in JSON"),
        (1j, "complex, which has no form in JSON"),
        (range(3), "range, which has no form"),
        (int, "has no form in JSON"),
        ((1, 2), r"at x.y: \(1, 2\) \(tuple\) would come back as \[1, 2\] \(list\)"),
        ({1, 2}, "would come back as"),
        (b"ab", "would come back as 'YWI='"),
        (datetime.date(2024, 1, 2), "would come back as '2024-01-02'"),
        (uuid.UUID(int=1), "would come back as"),
        ({1: "a"}, r"the key 1 \(int\) would come back as text"),
        ({1: "a", "1": "b"}, r"at x.y: the keys 1 \(int\) and '1' \(str\) are one and the same in JSON"),
        ({None: 1}, "at x.y: the key None has the type NoneType"),
        ({(1, 2): 1}, "at x.y: the key .* has the type tuple"),
    ],
    ids=case,
)
def test_what_json_cannot_hold_or_would_change_is_refused(value, words):
    with pytest.raises(PayloadError, match=words):
        codec.encode_payload({"x": {"y": value}})


def test_a_backslash_before_u0000_is_no_nul():
    payload = {"a": "\\u0000", "b": "\\\\u0000"}
    assert codec.decode_payload(codec.encode_payload(payload)) == payload
    with pytest.raises(PayloadError, match="NUL"):
        codec.encode_payload({"a": "\\u0000\\\0"})


def test_nesting_up_to_the_limit_is_taken_and_brackets_in_text_do_not_count():
    payload = {"x": nested(codec.NESTING_LIMIT - 1), "y": "[" * 500, "z": [[n] for n in range(200)]}
    assert codec.decode_payload(codec.encode_payload(payload)) == payload


@pytest.mark.parametrize("payload", [None, [1], "a", 5, b"{}"])
def test_only_a_mapping_is_a_payload(payload):
    with pytest.raises(PayloadError, match="a payload is a JSON object, not"):
        codec.encode_payload(payload)


@pytest.mark.parametrize("keys", [{1: "a"}, {None: 1}, {b"a": 1}])
def test_the_keys_of_a_payload_are_text(keys):
    with pytest.raises(PayloadError):
        codec.encode_payload(keys)


@pytest.mark.parametrize(
    "stored", ["", "{", "[]", "null", "NaN", '{"a":1e999}', '{"a":"\\ud800"}', "\ud800", "[" * 100_000]
)
def test_what_is_no_json_object_is_no_payload(stored):
    with pytest.raises(PayloadError, match="payload"):
        codec.decode_payload(stored)


def test_an_error_of_a_payload_never_leaks_another_exception_from_repr():
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(PayloadError, match="Rude"):
        codec.encode_payload({"x": Rude()})


def test_the_size_limit_counts_bytes_and_is_exact():
    fits = "ä" * ((codec.PAYLOAD_LIMIT - len('{"a":""}')) // 2)
    assert len(codec.encode_payload({"a": fits}).encode()) == codec.PAYLOAD_LIMIT
    with pytest.raises(
        PayloadTooLarge, match=r"takes 1,048,577 bytes as JSON, and the limit is 1,048,576; store"
    ):
        codec.encode_payload({"a": fits + "x"})
    with pytest.raises(PayloadTooLarge, match="the limit is 5"):
        codec.encode_payload({"a": 1}, limit=5)


# -- results -------------------------------------------------------------------------------------


@settings(deadline=None)
@given(json_values)
def test_a_json_result_comes_back_as_it_was(value):
    assert codec.decode_result(codec.encode_result(value)) == value


@dataclasses.dataclass
class Point:
    x: float
    label: str | None = None


class Track(msgspec.Struct):
    points: list[Point]


class Model(pydantic.BaseModel):
    at: datetime.datetime
    ratio: float = 1.0


class LooseModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    ratio: float


class Keyed(pydantic.BaseModel):
    by: dict[Any, Any]
    ratio: float = 1e16  # which pydantic and msgspec need not write in the same way


class Level(Enum):
    LOW = 1
    HIGH = "high"


class Unwritable(Enum):
    PAIR = (1, 2)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, "null"),
        ((1, 2), "[1,2]"),
        (Point(1), '{"x":1,"label":null}'),
        (Track([Point(1.5, "a")]), '{"points":[{"x":1.5,"label":"a"}]}'),
        (datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC), '"2024-01-02T00:00:00Z"'),
        (Model(at=datetime.datetime(2024, 1, 2)), '{"at":"2024-01-02T00:00:00","ratio":1.0}'),  # noqa: DTZ001
        ([{"m": Colour.RED}], '[{"m":"red"}]'),
        ({1: "a", "2": "b", Level.HIGH: "c"}, '{"1":"a","2":"b","high":"c"}'),
        (Keyed(by={1: 2, "ä": 3}), '{"by":{"1":2,"ä":3},"ratio":1e16}'),
        ([{"a": 1}, {"a": 2, "b": {"a": 3}}], '[{"a":1},{"a":2,"b":{"a":3}}]'),
        ({"raw": msgspec.Raw(b'{ "a": 1 }')}, '{"raw":{ "a": 1 }}'),
    ],
    ids=case,
)
def test_a_result_is_written_as_plain_json(value, stored):
    assert codec.encode_result(value) == stored


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (float("nan"), "nan is no number"),
        ([None, float("nan")], r"at \[1\]: nan"),
        (Point(float("inf")), "at x: inf is no number"),
        (Track([Point(float("nan"))]), r"at points\[0\].x: nan"),
        (Model(at=datetime.datetime.now(datetime.UTC), ratio=float("nan")), "at ratio: nan"),
        (LooseModel(ratio=float("inf")), "at ratio: inf"),
        (object(), "has no form in JSON"),
        ("\0", "NUL"),
        ("\ud800", "lone surrogate"),
        (circular(), "contains itself"),
        (nested(101), "nested deeper"),
        ({1: "a", "1": "b"}, r"the keys 1 \(int\) and '1' \(str\) are one and the same in JSON"),
        ([Point({2.5: 1, "2.5": 2})], r"at \[0\].x: the keys 2.5 \(float\) and '2.5' \(str\) are one"),  # type: ignore[arg-type]
        ({True: 1, "1": None}, r"the keys True \(bool\) and '1' \(str\) are one"),
        ({Level.LOW: 1, 1: 2}, r"the keys <Level.LOW: 1> \(Level\) and 1 \(int\) are one"),
        ({Unwritable.PAIR: 1, 1: 2, "1": 3}, r"the keys 1 \(int\) and '1' \(str\) are one"),
        ({Unwritable.PAIR: 1}, "tuple has no form in JSON"),
        ({None: 1}, "the key None has the type NoneType"),
        (Keyed(by={1: 2, "1": 3}), "two keys of one object are both written as '1'"),
        ([Keyed(by={True: 2, "true": 3})], "two keys of one object are both written as 'true'"),
        ({"raw": msgspec.Raw(b"{")}, "truncated"),
    ],
    ids=case,
)
def test_a_result_that_cannot_be_json_is_one_clear_error(value, words):
    with pytest.raises(PayloadError, match=f"the result cannot be stored as JSON: .*{words}"):
        codec.encode_result(value)


keys = (
    st.integers(-3, 3)
    | st.booleans()
    | st.sampled_from([0.5, 1.0, -0.0])
    | st.sampled_from([Level.LOW, Level.HIGH, Colour.RED])
    | st.sampled_from(["-3", "0", "1", "2", "0.5", "1.0", "true", "high", "red"])
)
keyed_values = st.recursive(
    st.integers() | st.none(),
    lambda inner: (
        st.dictionaries(keys, inner)
        | st.lists(inner)
        | st.tuples(inner)
        | st.builds(Point, inner)
        | st.builds(lambda value: Keyed.model_construct(by=value, ratio=0.5), st.dictionaries(keys, inner))
    ),
    max_leaves=12,
)


def values_in(value: object) -> int:
    """How many leaves there are, in what was returned or in what came back for it."""
    if isinstance(value, Point):
        return values_in(value.x) + 1
    if isinstance(value, Keyed):
        return values_in(value.by) + 1
    if isinstance(value, dict):
        return sum(map(values_in, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(values_in, value))
    return 1


@settings(deadline=None)
@given(keyed_values)
@example({1: 2, "1": 3})
def test_no_value_of_a_result_is_lost_because_two_keys_are_one_in_json(value):
    try:
        stored = codec.encode_result(value)
    except PayloadError as error:
        assert re.search("one and the same in JSON|both written as", str(error))  # noqa: PT017 - else nothing is lost
    else:
        assert values_in(codec.decode_result(stored)) == values_in(value)


@settings(deadline=None)
@given(st.dictionaries(keys, st.integers(), min_size=1))
def test_keys_that_differ_in_json_are_never_refused_in_a_result(value):
    written = [json.loads(codec.encode_result({key: None})) for key in value]
    if len({next(iter(each)) for each in written}) == len(value):
        assert list(codec.decode_result(codec.encode_result(value)).values()) == list(value.values())
    else:
        with pytest.raises(PayloadError, match="one and the same in JSON"):
            codec.encode_result(value)


@settings(deadline=None)
@given(keyed_values)
def test_a_payload_comes_back_with_every_key_it_was_given_or_is_refused(value):
    try:
        stored = codec.encode_payload({"x": value})
    except PayloadError:
        return
    assert codec.decode_payload(stored) == {"x": value}


def test_a_result_over_the_limit_is_refused():
    with pytest.raises(PayloadTooLarge, match="the result takes 12 bytes as JSON, and the limit is 10"):
        codec.encode_result("x" * 10, limit=10)


def test_a_result_that_is_not_readable_says_so():
    with pytest.raises(PayloadError, match="the result is not readable as JSON"):
        codec.decode_result("{")


# -- text and names ------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.text(st.characters()), st.integers(min_value=0, max_value=200))
def test_cleaned_text_is_bounded_and_storable(value, limit):
    cleaned = codec.clean_text(value, limit)
    assert len(cleaned) <= limit
    assert "\0" not in cleaned
    cleaned.encode()


@settings(deadline=None)
@given(text)
def test_clean_text_within_the_limit_is_left_alone(value):
    assert codec.clean_text(value, 10_000) == value


def test_shortened_text_keeps_its_head_and_tail_and_says_what_is_missing():
    cleaned = codec.clean_text("begin " + "x" * 10_000 + " end", 200)
    assert cleaned.startswith("begin ")
    assert cleaned.endswith(" end")
    assert len(cleaned) <= 200
    kept = cleaned.split("\n")
    assert kept[1] == f"… {10_010 - len(kept[0]) - len(kept[2]):,} characters left out …"


def test_nul_and_lone_surrogates_are_replaced():
    assert codec.clean_text("a\0b\ud800c", 100) == "a\ufffdb\ufffdc"


@pytest.mark.parametrize(
    "name", ["default", "email:send", "reports.build", "größe", "a b", "日本", "x" * 255, "a\xa0b"]
)
def test_a_good_name_is_returned_as_given(name):
    assert codec.checked_name("queue", name) == name


def test_a_name_of_an_enum_is_stored_as_plain_text():
    assert type(codec.checked_name("queue", Colour.RED)) is str


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "'' cannot be a queue name: it is empty"),
        (None, r"a queue name is text, not None \(NoneType\)"),
        (5, "a queue name is text, not 5"),
        (b"a", "a queue name is text, not b'a'"),
        ("x" * 256, "takes 256 bytes of UTF-8, and the limit is 255"),
        ("ä" * 128, "takes 256 bytes"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\x85b", "control character"),
        ("a\x7f", "control character"),
        ("a\ud800", "lone surrogate"),
        (" a", "begins or ends with whitespace"),
        ("a ", "begins or ends with whitespace"),
        ("a\u3000", "begins or ends with whitespace"),
    ],
    ids=case,
)
def test_a_bad_name_is_refused_with_what_is_wrong(name, words):
    with pytest.raises(ConfigurationError, match=words):
        codec.checked_name("queue name", name)


def test_a_key_may_be_longer():
    assert codec.checked_name("idempotency key", "k" * 1024, codec.KEY_LIMIT) == "k" * 1024
    with pytest.raises(ConfigurationError, match="limit is 1,024"):
        codec.checked_name("idempotency key", "k" * 1025, codec.KEY_LIMIT)


@settings(deadline=None)
@given(st.text(st.characters()))
def test_a_checked_name_can_always_be_stored(value):
    try:
        name = codec.checked_name("tag", value)
    except ConfigurationError:
        return
    assert name == value == name.strip()
    assert 0 < len(name.encode()) <= codec.NAME_LIMIT
    assert "\0" not in name
