"""Values as text on the way to the server and back: exactly the same, in whatever time zone."""

from __future__ import annotations

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskharbor.client.options import FIRST_INSTANT, LAST_INSTANT
from taskharbor.clock import from_micros
from taskharbor.drivers.postgres.caller_texts import encoded, instant, rewritten
from tests.postgres import store

EDGES = [FIRST_INSTANT, FIRST_INSTANT + 1, -1, 0, 1, 1_767_225_600_123_457, LAST_INSTANT, LAST_INSTANT + 7]


@pytest.fixture
def shared() -> str:
    return store.shared_database()


@given(st.integers(FIRST_INSTANT, LAST_INSTANT))
@settings(max_examples=200)
def test_instant_comes_back_from_its_text(micros: int) -> None:
    text = encoded(micros, "timestamptz")
    assert text is not None
    assert instant(text) == instant(text.replace(" ", "T")) == micros
    assert instant(from_micros(micros).isoformat()) == micros


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Berlin"])
async def test_server_reads_and_writes_every_instant(shared: str, zone: str) -> None:
    """Its time zone may put the first and the last ones outside of the years that Python knows."""
    connection = await asyncpg.connect(shared)
    await connection.execute(f"SET timezone = '{zone}'")
    for micros in EDGES:
        text = encoded(micros, "timestamptz")
        answer = await connection.fetchval("SELECT to_json($1::text::timestamptz) #>> '{}'", text)
        assert instant(answer) == micros, answer
    rows = await connection.fetchval(
        "SELECT array_to_json($1::text::timestamptz[])::text", encoded([*EDGES, None], "timestamptz[]")
    )
    assert rows.count("null") == 1
    await connection.close()


async def test_server_reads_every_array(shared: str) -> None:
    texts = [
        "",
        "NULL",
        "null",
        None,
        "{}",
        ",",
        '"',
        "\\",
        '\\"',
        " a ",
        "'; --",
        "ü\n\t",
        "%s",
        "$1",
        ":a1",
        "a" * 10_000,
    ]
    connection = await asyncpg.connect(shared)
    for values in ([], texts, texts[::-1]):
        assert await connection.fetchval("SELECT $1::text::text[]", encoded(values, "text[]")) == values
    assert await connection.fetchval("SELECT $1::text::integer[]", encoded([1, None, -3], "integer[]")) == [
        1,
        None,
        -3,
    ]
    assert await connection.fetchval("SELECT $1::text::boolean[]", encoded([True, False], "boolean[]")) == [
        True,
        False,
    ]
    await connection.close()


def test_every_argument_needs_a_type() -> None:
    text, kinds = rewritten("SELECT $1::text[]::uuid[], $2::timestamptz, $1::text[]", _numbered)
    assert text == "SELECT <1>::text::text[]::uuid[], <2>::text::timestamptz, <1>::text::text[]"
    assert kinds == {1: "text[]", 2: "timestamptz"}
    with pytest.raises(AssertionError, match="no type"):
        rewritten("SELECT $1", _numbered)


def _numbered(number: int) -> str:
    return f"<{number}>"
