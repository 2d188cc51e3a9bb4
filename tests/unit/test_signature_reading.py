"""Reading a function: what its payload will hold, and what is refused when a task is declared."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import pytest

from taskharbor.errors import ConfigurationError, PayloadError
from taskharbor.signature import CallPlan
from tests.unit.plans import Context, HoldsText, Linked, case, plan_for, plan_of, send

if TYPE_CHECKING:
    from somewhere import Unknown  # type: ignore[import-not-found]


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


def test_a_method_is_refused_because_a_payload_cannot_carry_its_object():
    class Mailer:
        def send(self, to: str) -> None: ...

    with pytest.raises(ConfigurationError, match="is a method"):
        CallPlan.of(Mailer.send, context_type=Marker)


class Marker: ...
