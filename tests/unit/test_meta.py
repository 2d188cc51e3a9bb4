"""A job's meta: what it may be, how it is read, and what of it is inherited."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.json import encode as _encode

from taskharbor import ConfigurationError
from taskharbor.client.options import checked_options
from taskharbor.rules.meta import BYTES_MAX, ENTRIES_MAX, checked_meta, read_meta, with_inherited
from tests.unit import metas

NAMES = st.text("abcXYZ09_.-", min_size=1, max_size=64)
VALUES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=512)
MAPS = st.dictionaries(NAMES, VALUES, max_size=ENTRIES_MAX)


@pytest.mark.parametrize("value", metas.TAKEN)
def test_meta_within_the_limits_is_taken_and_read_back(value: dict[str, str]):
    assert read_meta(checked_options({"meta": value})["meta"]) == value


@pytest.mark.parametrize(("complaint", "value"), metas.REFUSED)
def test_meta_beyond_a_limit_is_refused(complaint: str, value: Any):
    with pytest.raises(ConfigurationError, match=complaint):
        checked_options({"meta": value})


def test_lone_surrogate_is_refused():
    with pytest.raises(ConfigurationError, match="lone surrogate"):
        checked_meta({"n": "a\ud800"})


def test_empty_map_is_none():
    assert checked_meta({}) is None
    assert read_meta(None) == {}


@pytest.mark.parametrize("text", ["", "no json", "[]", "5", '{"a":1}', '{"a":null}', '"a"', "{" * 10_000])
def test_text_that_is_no_map_of_text_is_read_as_none(text: str):
    assert read_meta(text) == {}
    assert with_inherited('{"a":"1"}', text) == '{"a":"1"}'
    assert with_inherited(text, '{"a":"1"}') == '{"a":"1"}'


def fits(value: dict[str, str]) -> bool:
    try:
        checked_meta(value)
    except ConfigurationError:
        return False
    return True


@given(MAPS, MAPS)
def test_own_entries_win_and_inherited_ones_come_along_as_far_as_they_fit(
    own: dict[str, str], inherited: dict[str, str]
):
    if not fits(own):
        return
    both = read_meta(with_inherited(checked_meta(own), _encode(inherited).decode()))
    assert {name: both[name] for name in own} == own
    assert fits(both)
    assert all(both[name] == inherited[name] for name in both.keys() - own.keys())
    for name in inherited.keys() - both.keys():
        assert not fits({**both, name: inherited[name]})


def test_inherited_entries_fill_the_room_to_the_last_byte():
    inherited = {f"n{number}": "v" * 504 for number in range(7)} | {"last": "v" * 501}
    assert len(str(checked_meta(inherited)).encode()) == BYTES_MAX
    assert with_inherited(None, checked_meta(inherited)) == checked_meta(inherited)


def test_only_as_many_inherited_entries_come_along_as_a_meta_takes():
    """A meta that was written by hand may have more than the limits allow."""
    many = {f"n{number:02}": "v" for number in range(ENTRIES_MAX + 5)}
    kept = read_meta(with_inherited('{"own":"1"}', _encode(many).decode()))
    assert list(kept) == ["own", *list(many)[: ENTRIES_MAX - 1]]
    large = {f"n{number}": "v" * 500 for number in range(12)}
    text = with_inherited(None, _encode(large).decode())
    assert text is not None
    assert len(text.encode()) <= BYTES_MAX
    assert len(read_meta(text)) == 8
