"""Binding a call: arguments become a payload as Python would bind them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.errors import PayloadError
from tests.unit.plans import case, plan_of, send

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
