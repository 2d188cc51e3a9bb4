"""Decoding: a payload becomes the call again, also one under old names."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from taskharbor.errors import ConfigurationError, PayloadError
from tests.unit.plans import case, plan_for, plan_of, send

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
