"""The URL of a store: what may stand in it, and that a mistake in it is told as one, never as an outage."""

from __future__ import annotations

import asyncpg
import pytest

from taskharbor.drivers.postgres import PostgresDriver, address
from taskharbor.errors import ConfigurationError, StoreUnavailable
from tests.postgres.server import free_port


def with_query(dsn: str, query: str) -> str:
    assert "?" not in dsn
    return f"{dsn}?{query}"


async def refusal(url: str) -> ConfigurationError:
    driver = PostgresDriver.from_url(url)
    with pytest.raises(ConfigurationError) as refused:
        await driver.open()
    await driver.close()
    return refused.value


# -- what stands behind the ? --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("bogus=1", 'unrecognized configuration parameter "bogus"'),
        ("connect_timeout=5", 'unrecognized configuration parameter "connect_timeout"'),
        ("options=-c%20bogus%3D1", 'unrecognized configuration parameter "bogus"'),
    ],
)
async def test_unknown_parameter_is_named_with_what_is_allowed(dsn: str, query: str, words: str) -> None:
    text = str(await refusal(with_query(dsn, query)))
    assert words in text
    for allowed in (*address.OURS, *address.CONNECTION, "statement_timeout=5s"):
        assert allowed in text


def test_parameter_that_a_pooler_refuses_is_a_mistake_too() -> None:
    error = asyncpg.ProtocolViolationError("unsupported startup parameter: bogus")
    refused = address.refused_address(error, "postgresql://h/d?bogus=1")
    assert "unsupported startup parameter: bogus. Behind the ? of the URL" in str(refused)
    assert address.refused_address(asyncpg.ProtocolViolationError("no more"), "postgresql://h/d") is None


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("statement_timeout=abc", 'invalid value for parameter "statement_timeout": "abc"'),
        ("role=nobody_at_all", 'role "nobody_at_all" does not exist'),
        ("shared_buffers=1GB", '"shared_buffers" cannot be changed'),
        ("options=-c%20x", "-c x requires a value"),
        ("sslmode=sometimes", "sslmode"),
        ("sslmode=verify-full&sslrootcert=/no/such/file", "sslrootcert .*names no file: '/no/such/file'"),
        ("target_session_attrs=some", "target_session_attrs"),
    ],
)
async def test_value_that_is_refused_is_a_mistake_and_no_outage(dsn: str, query: str, words: str) -> None:
    error = await refusal(with_query(dsn, query))
    assert error.__cause__ is not error
    with pytest.raises(ConfigurationError, match=words):
        raise error


@pytest.mark.parametrize(
    "query",
    [
        "statement_timeout=5s",
        "my.setting=1",
        "options=-c%20statement_timeout%3D5s",
        "sslmode=prefer&target_session_attrs=read-write",
        "search_path=elsewhere",
    ],
)
async def test_settings_of_the_server_and_of_asyncpg_are_handed_on(dsn: str, query: str) -> None:
    driver = PostgresDriver.from_url(with_query(dsn, query))
    await driver.migrate()
    assert await driver.now() > 0
    await driver.close()


async def test_application_name_is_the_callers_to_choose(dsn: str) -> None:
    driver = PostgresDriver.from_url(with_query(dsn, "application_name=billing"))
    await driver.migrate()
    assert await driver.now() > 0
    onlooker = await asyncpg.connect(dsn)
    names = await onlooker.fetch(
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
    )
    await onlooker.close()
    await driver.close()
    assert "billing" in {row["application_name"] for row in names}


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("bogus", "'bogus' in the URL of .* has no value; write"),
        ("sslmode=", "'sslmode' in the URL of .* has no value"),
        ("=hidden", "a value in the URL of .* has no name"),
        ("a%00b=1", "NUL"),
        ("statement_timeout=1%00", "'statement_timeout' in the URL of .* NUL"),
        ("listen=maybe", "listen= is on or off, not 'maybe'"),
        ("connections=3", "connections= of .* must be a whole number from 4 .* to 100, not 3"),
        ("connections=101", "must be a whole number from 4 .* to 100, not 101"),
        ("connections=many", "must be a whole number from 4 .* to 100, not 'many'"),
    ],
)
def test_parameter_that_says_nothing_is_refused_before_anything_is_opened(query: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as refused:
        PostgresDriver.from_url(f"postgresql://u:secret@h/d?{query}")
    assert "secret" not in str(refused.value)
    assert "hidden" not in str(refused.value)


# -- hosts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h:5433/d", "postgresql://h:5433/d"),
        ("postgresql://u:secret@h/d?sslmode=require", "postgresql://h/d"),
        ("postgresql://u:sec@ret@h1:5432,h2:5433/d", "postgresql://h1:5432,h2:5433/d"),
        ("postgresql://[::1]:5433/d", "postgresql://[::1]:5433/d"),
        ("postgresql://[::1]/d", "postgresql://[::1]/d"),
        ("postgresql:///d", "postgresql://localhost/d"),
        ("postgresql://u:secret#@h/d", "postgresql://u"),  # the password should have been encoded
    ],
)
def test_address_shows_the_hosts_and_never_the_password(url: str, shown: str) -> None:
    assert address.address_of(url) == shown
    assert repr(PostgresDriver.from_url(url)).startswith(f"PostgresDriver('{shown}'")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret#@h/d",
        "postgresql://u:secret@h:port/d",
        "postgresql:///d?host=127.0.0.1&port=abc",
    ],
)
async def test_host_and_port_that_cannot_be_read_are_a_mistake_and_show_no_password(url: str) -> None:
    text = str(await refusal(url))
    assert "cannot be read; write postgresql://user:password@host:port/database" in text
    assert "secret" not in text


def test_broken_brackets_are_a_mistake() -> None:
    with pytest.raises(ConfigurationError, match="an IPv6 address in brackets") as refused:
        PostgresDriver.from_url("postgresql://u:secret@[::1/d")
    assert "secret" not in str(refused.value)


async def test_second_host_is_used_where_the_first_does_not_answer(dsn: str) -> None:
    driver = PostgresDriver.from_url(dsn.replace("@", f"@127.0.0.1:{free_port()},"))
    await driver.migrate()
    await driver.close()


async def test_hosts_that_do_not_answer_are_all_named() -> None:
    driver = PostgresDriver.from_url(
        f"postgresql://u:secret@127.0.0.1:{free_port()},127.0.0.1:{free_port()}/d"
    )
    with pytest.raises(StoreUnavailable, match=r"postgresql://127.0.0.1:\d+,127.0.0.1:\d+/d") as away:
        await driver.open()
    await driver.close()
    assert "secret" not in str(away.value)
