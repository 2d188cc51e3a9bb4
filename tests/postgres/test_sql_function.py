"""`taskharbor.enqueue` from plain SQL, from a trigger, from any language: the same rules as from Python."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from taskharbor import ConfigurationError, Harbor, Worker
from taskharbor.client.options import OPTION_NAMES, checked_options
from taskharbor.codec import checked_name, decode_payload, encode_payload
from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.changes import channel_of
from taskharbor.errors import PayloadError
from taskharbor.failure_tasks import named_failure_task
from taskharbor.records import FailureTask, Options
from tests.postgres import store
from tests.unit import metas

ID = "0197f3c2-8a5e-7cc3-98c8-5d1f9a3b2c10"
FAILURE_TASK: dict[str, Any] = {
    "task": "alert", "payload": {"level": 3, "none": None}, "parameter": "died", "queue": "alerts", "delay": 1.5,
    "priority": 9, "max_retries": 2, "timeout": 30, "delivery": "at_most_once", "correlation_id": "f",
    "tags": ["z", "y"], "meta": {"of": "alert"},
}  # fmt: skip


@pytest.fixture(scope="module")
def migrated() -> Any:
    """One schema, not of the default name, for all of them: each test is rolled back."""
    with store.fresh() as driver, Harbor(driver=driver) as harbor:
        harbor.migrate()
        yield driver.schema


class Psql:
    def __init__(self, connection: asyncpg.Connection, schema: str) -> None:
        self.connection = connection
        self.schema = schema

    async def enqueue(self, task: object = "t", payload: object = None, **options: object) -> str:
        return str(await self.ask(task, json.dumps({} if payload is None else payload), json.dumps(options)))

    async def ask(self, task: object, payload: str | None, options: str | None) -> Any:
        async with (
            self.connection.transaction()
        ):  # a savepoint: what is refused must not end the test's transaction
            return await self.connection.fetchval(
                f"SELECT {self.schema}.enqueue($1, $2, $3)", task, payload, options
            )

    async def row(self, job_id: str) -> asyncpg.Record:
        row = await self.connection.fetchrow(
            f"SELECT * FROM {self.schema}.jobs WHERE id = $1", uuid.UUID(job_id)
        )
        assert row is not None
        return row


@pytest.fixture
async def psql(migrated: str) -> AsyncIterator[Psql]:
    connection = await asyncpg.connect(store.shared_database())
    transaction = connection.transaction()
    await transaction.start()
    yield Psql(connection, migrated)
    await transaction.rollback()
    await connection.close()


async def test_job_from_plain_sql_runs_as_one_from_python(dsn: str) -> None:
    harbor = Harbor(driver=PostgresDriver(dsn))
    await harbor.amigrate()
    ran: list[tuple[str, int]] = []

    @harbor.task(name="greet")
    def greet(name: str, times: int = 1) -> str:
        ran.append((name, times))
        return name

    connection = await asyncpg.connect(dsn)
    first = await connection.fetchval("""SELECT taskharbor.enqueue('greet', '{"name": "Ada"}')""")
    await connection.execute(
        """SELECT taskharbor.enqueue('greet', jsonb_build_object('name', 'Bob', 'times', 2), '{"priority": -1}')"""
    )
    await connection.close()
    await Worker(harbor, concurrency=1).drain()
    assert ran == [("Ada", 1), ("Bob", 2)]
    job = await harbor.jobs.aget(first)
    assert (job.state, await job.aresult(), job.payload) == ("succeeded", "Ada", {"name": "Ada"})
    await harbor.aclose()


async def test_every_option_is_kept_as_python_keeps_it(dsn: str) -> None:
    harbor = Harbor(driver=PostgresDriver(dsn, schema="Other_one"))
    await harbor.amigrate()
    soon = datetime.now(UTC) + timedelta(hours=1)
    options: dict[str, Any] = {
        "queue": "mail",
        "run_at": soon,
        "priority": -7,
        "max_retries": 4,
        "timeout": 2.5,
        "expires_at": soon + timedelta(days=1),
        "idempotency_key": "k \" \\ ' ü",
        "delivery": "at_most_once",
        "correlation_id": "c",
        "tags": ["b", "a", "b"],
        "meta": {"tenant": "acme", "note": 'é "x"'},
        "failure_task": FAILURE_TASK,
        "id": ID,
    }
    payload = {"x": 1, "nested": {"ü": [1.5, None, True, "\\u0000"]}}
    by_name = named_failure_task(harbor, FAILURE_TASK)
    theirs = await harbor.aenqueue("t", payload, **{**options, "failure_task": by_name})
    await harbor.jobs.adelete(ID)
    connection = await asyncpg.connect(dsn)
    texts = {name: each.isoformat() if isinstance(each, datetime) else each for name, each in options.items()}
    given = await connection.fetchval(
        'SELECT "Other_one".enqueue($1, $2, $3)', "t", json.dumps(payload), json.dumps(texts)
    )
    assert str(given) == ID
    mine = await harbor.jobs.aget(ID)
    for name in ("task", "payload", "queue", "run_at", "priority", "expires_at", "idempotency_key", "delivery",
                 "correlation_id", "tags", "meta", "state", "attempts"):  # fmt: skip
        assert getattr(mine, name) == getattr(theirs, name), name
    assert _decoded(mine.record.options) == _decoded(theirs.record.options)
    assert [job.id for job in await harbor.jobs.alist(tag="a")] == [ID]
    await connection.close()
    await harbor.aclose()


def _decoded(options: Options) -> Options:
    """With the payload of the failure task and its meta as values: each language writes its own spaces."""
    kept = options.failure_task
    assert isinstance(kept, FailureTask)
    texts = {
        name: json.dumps(json.loads(getattr(kept, name)), sort_keys=True) for name in ("payload", "meta")
    }
    return replace(options, failure_task=replace(kept, **texts))


async def test_failure_task_from_plain_sql_runs_with_the_death(dsn: str) -> None:
    """And takes nothing of it where it has no parameter; null takes the one away that the task declares."""
    harbor = Harbor(driver=PostgresDriver(dsn))
    await harbor.amigrate()
    ran: list[Any] = []

    @harbor.task(name="alert")
    def alert(died: dict[str, Any] | None = None, level: int = 1) -> None:
        ran.append((died and died["job"], level))

    @harbor.task(name="fail", max_attempts=1, failure_task=alert.si(level=9))
    def fail() -> None:
        raise ValueError("broken")

    connection = await asyncpg.connect(dsn)

    async def enqueue(failure_task: object) -> str:
        options = json.dumps({"failure_task": failure_task})
        return str(await connection.fetchval("SELECT taskharbor.enqueue('fail', '{}', $1)", options))

    first = await enqueue({"task": "alert", "parameter": "died", "payload": {"level": 3}})
    await enqueue({"task": "alert", "parameter": None, "priority": -1})
    await enqueue(None)
    await connection.execute("SELECT taskharbor.enqueue('fail')")
    await connection.close()
    await Worker(harbor, concurrency=1).drain()
    assert sorted(ran, key=str) == [(first, 3), (None, 1), (None, 9)]
    await harbor.aclose()


async def test_existing_job_is_answered_and_nothing_changes(psql: Psql) -> None:
    first = await psql.enqueue(payload={"x": 1}, idempotency_key="k")
    assert await psql.enqueue(payload={"x": 2}, idempotency_key="k") == first
    assert await psql.enqueue(payload={"x": 2}, id=first) == first
    assert await psql.enqueue(idempotency_key="k", queue="other") != first
    assert json.loads((await psql.row(first))["payload"]) == {"x": 1}


async def test_defaults_and_nulls(psql: Psql) -> None:
    for job_id in (
        await psql.enqueue(),
        str(await psql.ask("t", None, None)),
        await psql.enqueue(**dict.fromkeys(OPTION_NAMES - {"retry", "failure_task"})),
        str(await psql.connection.fetchval(f"SELECT {psql.schema}.enqueue(task => 't', options => '{{}}')")),
    ):
        row = await psql.row(job_id)
        assert (row["queue"], row["priority"], row["payload"], row["options"]) == ("default", 0, "{}", None)
        assert row["meta"] is None
        assert row["run_at"] == row["enqueued_at"]


async def test_ids_are_of_version_7_and_sort_by_time(psql: Psql) -> None:
    ids = [uuid.UUID(await psql.enqueue()) for _ in range(20)]
    assert {(each.version, each.variant) for each in ids} == {(7, uuid.RFC_4122)}
    assert ids == sorted(ids)
    made_at = datetime.fromtimestamp((ids[0].int >> 80) / 1000, UTC)
    assert abs(made_at - datetime.now(UTC)) < timedelta(minutes=5)


async def test_delay_counts_from_the_servers_now(psql: Psql) -> None:
    row = await psql.row(await psql.enqueue(delay=90.0000015))
    assert row["run_at"] - row["enqueued_at"] in (
        timedelta(seconds=90, microseconds=1),
        timedelta(seconds=90, microseconds=2),
    )


async def test_time_zone_of_the_session_changes_nothing(psql: Psql) -> None:
    for zone in ("UTC", "Pacific/Kiritimati", "America/Los_Angeles"):
        await psql.connection.execute(f"SET timezone = '{zone}'")
        for text in (
            "2030-01-31T08:00:00.123456Z",
            "2030-01-31 09:00:00.123456+01",
            "2030-01-31T13:30:00.123456+05:30",
        ):
            row = await psql.row(await psql.enqueue(run_at=text))
            assert row["run_at"] == datetime(2030, 1, 31, 8, 0, 0, 123456, UTC)
        for text in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"):
            assert (await psql.row(await psql.enqueue(run_at=text)))["run_at"].year in (1, 9999)
        assert await psql.connection.fetchval("SHOW timezone") == zone


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("unknown options", {"prio": 1}),
    ("unknown options", {"retry": {"max_attempts": 3}}),
    ("expires_at and expires_in say the same", {"expires_at": "2030-01-01T00:00:00Z", "expires_in": 5}),
    ("expires_in must be more than 0 seconds", {"expires_in": 0}),
    ("priority must be a whole number from -100 to 100", {"priority": 101}),
    ("priority", {"priority": 1.5}),
    ("priority", {"priority": "1"}),
    ("priority", {"priority": True}),
    ("max_attempts must be a whole number from 0 to 10000", {"max_attempts": 10001}),
    ("max_attempts", {"max_attempts": -1}),
    ("max_retries must be a whole number from 0 to 9999", {"max_retries": 10000}),
    ("say the same thing", {"max_attempts": 1, "max_retries": 1}),
    ("say the same thing", {"run_at": "2030-01-01T00:00:00Z", "delay": 1}),
    ("delay must be a number of seconds from 0", {"delay": -1}),
    ("delay", {"delay": "1 hour"}),
    ("delay", {"delay": 1e11}),
    ("timeout must be more than 0", {"timeout": 0}),
    ("timeout", {"timeout": [1]}),
    ("run_at must be a date, a time and an offset", {"run_at": "2030-01-01T00:00:00"}),
    ("run_at", {"run_at": "tomorrow"}),
    ("run_at", {"run_at": "2030-13-01T00:00:00Z"}),
    ("run_at", {"run_at": "0001-01-01T00:00:00+01"}),
    ("run_at", {"run_at": 1893456000}),
    ("run_at", {"run_at": "2030-01-01T24:00:00Z"}),
    ("run_at", {"run_at": "2030-01-01T23:59:60Z"}),
    ("expires_at", {"expires_at": "infinity"}),
    ("delivery must be at_least_once or at_most_once", {"delivery": "exactly_once"}),
    ("delivery", {"delivery": 1}),
    ("a job's id is a UUID", {"id": "42"}),
    ("a job's id is a UUID", {"id": 42}),
    ("a queue is empty", {"queue": ""}),
    ("a queue must be text", {"queue": 5}),
    ("a queue .* takes 256 bytes", {"queue": "ü" * 128}),
    ("a queue .* control character", {"queue": "a\nb"}),
    ("a queue .* whitespace", {"queue": "a "}),
    ("an idempotency key .* takes 1025 bytes", {"idempotency_key": "k" * 1025}),
    ("a correlation id", {"correlation_id": " c"}),
    ("tags must be a list", {"tags": "a"}),
    ("a tag must be text", {"tags": [1]}),
    ("a tag must be text", {"tags": [None]}),
    ("a tag is empty", {"tags": [""]}),
    ("tags that begin with taskharbor: are TaskHarbor's own, not taskharbor:b", {"tags": ["a", "taskharbor:b"]}),
    ("at most 32 tags", {"tags": [f"t{n}" for n in range(33)]}),
    *((complaint, {"meta": value}) for complaint, value in metas.REFUSED),
    ("failure_task must be an object with a task", {"failure_task": "alert"}),
    ("failure_task must be an object with a task", {"failure_task": {"task": "alert"}}),
    ("failure_task: a queue is empty", {"failure_task": {"task": "a", "parameter": None, "queue": ""}}),
]  # fmt: skip


@pytest.mark.parametrize(("complaint", "options"), REFUSED)
async def test_bad_option_is_refused_as_by_python(
    psql: Psql,
    complaint: str,
    options: dict[str, Any],
) -> None:
    with pytest.raises(
        asyncpg.InvalidParameterValueError, match=f"enqueue: .*{complaint}|enqueue: {complaint}"
    ) as raised:
        await psql.enqueue(**options)
    assert raised.value.hint  # what to do
    if not {"retry", "failure_task"} & options.keys():  # of which Python has other forms
        with pytest.raises(ConfigurationError):
            checked_options(dict(options))


@pytest.mark.parametrize(
    ("complaint", "task", "payload", "options"),
    [
        ("a task must be text", None, "{}", "{}"),
        ("a task is empty", "", "{}", "{}"),
        ("a task .* takes 256 bytes", "t" * 256, "{}", "{}"),
        ("a payload is a JSON object", "t", "[]", "{}"),
        ("a payload is a JSON object", "t", "null", "{}"),
        ("payload takes .* and the limit is 1048576", "t", json.dumps({"x": "y" * 1_048_576}), "{}"),
        ("nested deeper than 100", "t", '{"x":' * 100 + "[]" + "}" * 100, "{}"),
        ("more than 4300 digits", "t", '{"x": -1' + "0" * 4300 + "}", "{}"),
        ("options is a JSON object", "t", "{}", '["queue"]'),
    ],
)
async def test_bad_task_or_payload_is_refused(
    psql: Psql, complaint: str, task: str | None, payload: str, options: str
) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match=complaint):
        await psql.ask(task, payload, options)


async def test_payload_at_its_limits_is_taken_and_readable(psql: Psql) -> None:
    for payload in (
        '{"x":' * 99 + "[]" + "}" * 99,
        '{"x": 1' + "0" * 4299 + "}",
        '{"x": "' + "[{" * 200 + '"}',
    ):
        job_id = str(await psql.ask("t", payload, "{}"))
        try:
            assert decode_payload((await psql.row(job_id))["payload"]) == decode_payload(payload)
        except PayloadError as error:
            raise AssertionError(payload[:20]) from error


# Values on both sides of each rule. Python and SQL have to agree about every one of them, whatever they say.
_NAMES: list[Any] = [
    "a", "A b", "ü" * 127, "n" * 255, "\u180e", "\ufeff", "a\u2028b", "taskharbor:x",
    "", " ", " a", "a ", "a\u00a0", "\u3000a", "a\nb", "a\x7f", "\x85", "a\0", "\ud800", "ü" * 128, "n" * 1025,
    5, 1.5, True, ["a"], {"a": 1},
]  # fmt: skip
_COUNTS: list[Any] = [0, 1, 100, 9_999, -1, 10_001, 10**30, 1.0, 1.5, True, False, "1", "", [1], {}]
_SECONDS: list[Any] = [
    1, 0.5, 1e-6, 90.0000015, 3_153_600_000, 3_153_600_000.0, 0, -0.0,
    -1, -1e-9, 3_153_600_001, 3_153_600_000.5, 1e300, 10**30, True, "1", "1 hour", [1], {},
]  # fmt: skip
_INSTANTS: list[Any] = [
    "2030-01-31T08:00:00Z", "2030-01-31 08:00:00.123456+05:30", "2030-01-31T08:00-11:00", "2028-02-29T00:00:00Z",
    "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00-01:00", "9999-12-31T23:59:59+01:00",
    "0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z",
    "2030-01-31T08:00:00", "2030-01-31", "2030-02-29T00:00:00Z", "2030-13-01T00:00:00Z", "2030-01-01T25:00:00Z",
    "2030-01-01T08:60:00Z", "2030-01-01T23:59:60Z", "2030-01-31T08:00:00+25:00", "infinity", "-infinity", "now",
    "tomorrow", "", 0, 1_893_456_000, 1.5, True, [], {},
]  # fmt: skip
JUDGED: dict[str, list[Any]] = {
    "task": _NAMES,
    "queue": _NAMES,
    "correlation_id": _NAMES,
    "idempotency_key": [*_NAMES, "k" * 1024, "ü" * 512, "ü" * 513],
    "priority": [*_COUNTS, -100, -101, 101],
    "max_attempts": [*_COUNTS, 10_000],
    "max_retries": [*_COUNTS, 10_000],
    "delay": _SECONDS,
    "timeout": _SECONDS,
    "run_at": _INSTANTS,
    "expires_at": _INSTANTS,
    "expires_in": _SECONDS,
    "delivery": ["at_least_once", "at_most_once", "AT_MOST_ONCE", "exactly_once", "", 1, True, [], {}],
    "tags": [
        *([name] for name in _NAMES), *_NAMES, [], ["a", "a"], ["a", 1], [None], [["a"]],
        ["taskharbor"], ["Taskharbor:a"], ["a taskharbor:"], ["taskharbor:"], ["taskharbor:a"], ["a", "taskharbor:a"],
        [f"t{n}" for n in range(32)], [f"t{n % 32}" for n in range(64)], [f"t{n}" for n in range(33)],
    ],
    "meta": [
        {}, *metas.TAKEN, *(value for _, value in metas.REFUSED), {"x": "\0"}, {"x": "\ud800"}, {"x\0": ""},
    ],
    "failure_task": [
        *({"task": "a", "parameter": each} for each in [*_NAMES, None]),
        *({"task": each, "parameter": "died"} for each in _NAMES),
        *({"task": "a", "parameter": each, "payload": {"x": None}} for each in ("died", "x")),
        {"task": "a", "parameter": "died", "payload": None}, {"task": "a", "parameter": "died", "payload": [1]},
        {"task": "a", "parameter": "died", "payload": {"x": "y" * 1_048_576}},
        *({"task": "a", "parameter": "died", name: value} for name, value in {
            "queue": "q", "delay": 5, "priority": -100, "max_attempts": 0, "max_retries": 0, "timeout": 0.5,
            "delivery": "at_most_once", "correlation_id": "c", "tags": ["a"], "meta": {"a": "b"},
        }.items()),
        *({"task": "a", "parameter": "died", name: value} for name, value in {
            "queue": "", "delay": -1, "priority": 101, "max_attempts": -1, "max_retries": -1, "timeout": 0,
            "delivery": "once", "correlation_id": " c", "tags": "a", "meta": {"a": 1}, "prio": 1, "id": None,
            "run_at": "2030-01-31T08:00:00Z", "expires_at": "2030-01-31T08:00:00Z", "expires_in": 5,
            "idempotency_key": "k", "failure_task": None,
        }.items()),
        {}, {"parameter": "died"}, {"task": "a"}, [], 1, 1.5, True, "", "a",
    ],
    "payload": [
        {}, {"x": None}, {"": [1.5, True, "ü", {"y": []}]}, {"x": "\\u0000"}, {"x": 2**63}, {"x": -(2**63)},
        {"x": "y" * 1_048_000}, {"x": "y" * 1_048_576}, {"x": "\0"}, {"\0": 1}, {"x": "\ud800"},
        json.loads('{"x":' * 99 + "[]" + "}" * 99), json.loads('{"x":' * 100 + "[]" + "}" * 100),
        [], [1], "x", "", 1, 1.5, True,
    ],
}  # fmt: skip


def python_accepts(name: str, value: Any) -> bool:
    try:
        if name == "payload":
            encode_payload(value)
        elif name == "task":
            checked_name(name, value)
        elif name == "failure_task":
            # By name alone it is taken where the task's code is known, which SQL never does.
            checked_options({name: named_failure_task(Harbor("memory://"), value)})
        else:
            checked_options({name: instant_of(value) if name.endswith("_at") else value})
    except (ConfigurationError, PayloadError):
        return False
    return True


def instant_of(value: Any) -> Any:
    """The instant that a text names, which Python takes as a datetime only."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value


async def sql_accepts(psql: Psql, name: str, value: Any) -> bool:
    given = {name: value} if name in ("task", "payload") else {}
    options = {} if given else {name: value}
    try:
        # The task is the one argument that is no JSON: what is no text cannot be given.
        if name == "task" and not isinstance(value, str):
            return False
        await psql.enqueue(**given, **options)
    except (asyncpg.DataError, UnicodeEncodeError):  # the latter: what cannot even be sent
        return False
    return True


@pytest.mark.parametrize("name", JUDGED)
async def test_sql_refuses_what_python_refuses_and_nothing_else(psql: Psql, name: str) -> None:
    by_python = [python_accepts(name, value) for value in JUDGED[name]]
    by_sql = [await sql_accepts(psql, name, value) for value in JUDGED[name]]
    apart = [
        (ascii(value)[:80], {"python": python, "sql": sql})
        for value, python, sql in zip(JUDGED[name], by_python, by_sql, strict=True)
        if python != sql
    ]
    assert not apart
    assert set(by_python) == {True, False}  # the table has both kinds


def test_table_of_judged_values_has_every_option() -> None:
    """Of a retry policy SQL knows nothing; the forms of an id are a matter of either language."""
    assert {*JUDGED, "id", "retry"} == {*OPTION_NAMES, "task", "payload"}


async def test_names_are_judged_as_python_judges_them(psql: Psql) -> None:
    edges = [*range(1, 0x21), *range(0x7E, 0xA2), 0x1680, 0x180E, *range(0x1FFF, 0x2010), 0x2028, 0x2029, 0x202F,
             0x205F, 0x2060, 0x3000, 0xFEFF, 0x1F600]  # fmt: skip
    names = [
        name for code in edges for name in (chr(code), f"a{chr(code)}", f"{chr(code)}a", f"a{chr(code)}b")
    ]
    names += ["n" * 255, "n" * 256, "€" * 85, "€" * 86]
    await psql.connection.execute(
        f"""CREATE FUNCTION {psql.schema}.accepts(name text) RETURNS boolean LANGUAGE plpgsql AS $$
            BEGIN PERFORM {psql.schema}.checked_name('a queue', to_jsonb(name), 255); RETURN true;
            EXCEPTION WHEN invalid_parameter_value THEN RETURN false; END $$"""
    )
    judged = await psql.connection.fetch(
        f"SELECT name, {psql.schema}.accepts(name) AS accepted FROM unnest($1::text[]) AS n (name)", names
    )
    for row in judged:
        try:
            checked_name("queue", row["name"])
            expected = True
        except ConfigurationError:
            expected = False
        assert row["accepted"] == expected, ascii(row["name"])


async def test_trigger_enqueues_for_every_row_that_is_committed(dsn: str) -> None:
    harbor = Harbor(driver=PostgresDriver(dsn))
    await harbor.amigrate()
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        """
        CREATE TABLE orders (number integer PRIMARY KEY, customer text);
        CREATE FUNCTION confirm_order() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM taskharbor.enqueue('order:confirm', jsonb_build_object('number', NEW.number),
                                       jsonb_build_object('idempotency_key', 'order-' || NEW.number));
            RETURN NEW;
        END $$;
        CREATE TRIGGER confirm AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION confirm_order();
        """
    )
    await connection.execute("INSERT INTO orders SELECT n, 'Ada' FROM generate_series(1, 50) AS n")
    with pytest.raises(asyncpg.UniqueViolationError):
        await connection.execute("INSERT INTO orders VALUES (51, 'Bob'), (1, 'Bob')")
    assert (await harbor.jobs.acounts())["ready"] == 50
    numbers = {job.payload["number"] for job in await harbor.jobs.alist(task="order:confirm")}
    assert numbers == set(range(1, 51))
    await connection.close()
    await harbor.aclose()


async def test_search_path_of_the_session_leads_nowhere_else(psql: Psql) -> None:
    """What somebody else has put into a schema that comes first is not what is called."""
    await psql.connection.execute(
        """CREATE SCHEMA trap;
           CREATE FUNCTION trap.jsonb_typeof(jsonb) RETURNS text LANGUAGE sql AS 'SELECT (1 / 0)::text';
           SET search_path = trap, pg_catalog"""
    )
    assert await psql.enqueue(queue="mail")


async def test_channel_is_the_one_that_workers_listen_on(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    for schema in ("Other_one", "s" * 52, "s" * 53):
        driver = PostgresDriver(dsn, schema=schema)
        await driver.migrate()
        assert await connection.fetchval(f'SELECT "{schema}".channel()') == channel_of(schema)
        await driver.close()
    await connection.close()
