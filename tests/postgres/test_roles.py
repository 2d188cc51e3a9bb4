"""Least-privilege roles, with real ones: each connects as itself, and can do its duty and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import asyncpg
import pytest
from click.testing import CliRunner

from taskharbor import AccessDenied, Context, Harbor, Worker
from taskharbor.cli import cli
from taskharbor.drivers.base import (
    Cancel,
    ClaimRequest,
    DeadLetter,
    Delete,
    Discard,
    Extension,
    Requeue,
    Transition,
)
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.drivers.postgres import PostgresDriver, sql
from taskharbor.drivers.postgres.roles import FUNCTIONS, TABLES, Role, grants, quoted_role
from taskharbor.errors import ConfigurationError
from taskharbor.records import AttemptStatus, State
from tests.postgres import duties
from tests.postgres.crew import SCHEMA, Crew, crew


@pytest.fixture(scope="module")
def hands() -> Iterator[Crew]:
    with crew() as hands:
        yield hands


async def _do_duty(role: Role, driver: PostgresDriver, owner: PostgresDriver) -> None:
    if role is Role.PRODUCER:
        await duties.produce(driver)
    elif role is Role.WORKER:
        await duties.work(driver)
    else:
        await duties.operate(driver, await duties.prepare(owner))


# -- what each can do ------------------------------------------------------------------------------


@pytest.mark.parametrize("role", Role)
def test_role_can_do_its_duty_and_needs_every_right_for_it(hands: Crew, role: Role) -> None:
    """Without any one of its rights it cannot, and the error names the right and the table."""
    name = quoted_role(hands.names[role])

    async def whole(driver: PostgresDriver) -> None:
        owner, superuser = hands.driver(hands.owner), await asyncpg.connect(hands.dsn)
        await _do_duty(role, driver, owner)
        for table, right in [(table, right) for table, rights in TABLES.items() for right in rights[role]]:
            driver._store.is_checked = False  # as if it were opened for the first time
            await superuser.execute(f'REVOKE {right} ON "{SCHEMA}".{table} FROM {name}')
            with pytest.raises(AccessDenied, match=f"lacks .*{right}.* on the (table|view) {table} in"):
                await _do_duty(role, driver, owner)
            await superuser.execute(f'GRANT {right} ON "{SCHEMA}".{table} TO {name}')
        await superuser.close()
        await owner.close()

    hands.run(hands.names[role], whole)


def test_producer_gets_the_result_of_its_job(hands: Crew) -> None:
    """A producer and a worker in two processes' stead: two harbors, two roles."""

    def add(a: int, b: int) -> int:
        return a + b

    with (
        Harbor(hands.url(hands.names[Role.PRODUCER])) as producer,
        Harbor(hands.url(hands.names[Role.WORKER])) as works,
    ):
        producer.task(name="add")(add)
        works.task(name="add", queue="sums")(add)
        first = producer.enqueue("add", {"a": 1, "b": 2}, queue="sums", idempotency_key="sum", tags=["t"])
        again = producer.enqueue("add", {"a": 5, "b": 6}, queue="sums", idempotency_key="sum")
        assert (again.id, again.existed) == (first.id, True)
        Worker(works, queues=["sums"]).drain_sync()
        assert first.result(timeout=60) == 3
        assert [attempt.status for attempt in first.history()] == [AttemptStatus.SUCCEEDED]
        assert producer.jobs.get(first.id).state is State.SUCCEEDED


def test_worker_retries_cancels_prunes_and_reports_as_its_role(hands: Crew) -> None:
    """The worker itself, not its statements one by one: failures, children, progress, expiry, retention."""
    with Harbor(
        hands.url(hands.names[Role.WORKER]), retention={"succeeded": 0.0, "cancelled": 0.0}
    ) as harbor:

        @harbor.task(queue="mixed", max_attempts=1)
        def fails() -> None:
            raise ValueError("no")

        @harbor.task(queue="mixed")
        async def parent(ctx: Context) -> str:
            ctx.progress(0.5, "half")
            ctx.enqueue(fails.s())
            return "done"

        job, failed = parent.enqueue(), fails.enqueue()
        Worker(harbor, queues=["mixed"]).drain_sync()
        assert job.result(timeout=60) == "done"
        assert failed.refresh().state is State.DEAD
        assert harbor.jobs.counts(queue="mixed")["dead"] == 2
        assert harbor.prune() >= 1
        with pytest.raises(
            AccessDenied, match="lacks INSERT, DELETE on the table paused .* which an admin has"
        ):
            harbor.queues.pause("mixed")


# -- what each cannot do -----------------------------------------------------------------------------

TOKEN = "thief/1"
NOBODY = "019b76da-a800-7000-8000-0000000000ff"
FORBIDDEN: dict[str, Callable[[PostgresDriver], Awaitable[object]]] = {
    "claim": lambda d: d.claim(ClaimRequest(TOKEN, 1, 1)),
    "extend": lambda d: d.extend([Extension(TOKEN, 1)]),
    "take_expired": lambda d: d.take_expired(TOKEN, 1),
    "settle": lambda d: d.settle([Transition(TOKEN, NOBODY, 1, AttemptStatus.SUCCEEDED, State.SUCCEEDED)]),
    "cancel": lambda d: d.operate(Cancel(), [NOBODY]),
    "delete": lambda d: d.operate(Delete(), [NOBODY]),
    "dead_letter": lambda d: d.operate(DeadLetter(), [NOBODY]),
    "discard": lambda d: d.operate(Discard(), [NOBODY]),
    "requeue": lambda d: d.operate(Requeue(), [NOBODY]),
    "prune": lambda d: d.prune({State.DEAD: 2**52}, 10),
    "pause": lambda d: d.pause("default", True),
    "resume": lambda d: d.pause("default", False),
    "counts": lambda d: d.counts(),
    "steps": lambda d: d.steps(NOBODY),
}


@pytest.mark.parametrize("role", [Role.PRODUCER, Role.WORKER])
def test_only_an_admin_reads_and_writes_tokens(hands: Crew, role: Role) -> None:
    """A worker writes its own record, and its rights reach no token."""
    verbs: dict[str, Callable[[PostgresDriver], Awaitable[object]]] = {
        "SELECT": lambda d: d.records(RecordKind.TOKENS),
        "INSERT": lambda d: d.put_records(RecordKind.TOKENS, {"a": "{}"}, None),
        "DELETE": lambda d: d.drop_records(RecordKind.TOKENS, ["a"]),
    }
    for right, verb in verbs.items():
        with pytest.raises(
            AccessDenied, match=rf"lacks .*{right}.* on the table tokens .* which an admin has"
        ):
            hands.run(hands.names[role], verb)


@pytest.fixture(scope="module")
def stocked(hands: Crew) -> Crew:
    """With jobs that could be claimed, cancelled, requeued, pruned."""
    hands.run(hands.owner, duties.prepare)
    return hands


@pytest.mark.parametrize("verb", FORBIDDEN)
def test_producer_can_do_nothing_but_enqueue_and_look(stocked: Crew, verb: str) -> None:
    hands = stocked
    before = _everything(hands)
    with pytest.raises(
        AccessDenied, match=r"lacks .* on the table .*, which .* ha(s|ve)\. `taskharbor roles` prints"
    ):
        hands.run(hands.names[Role.PRODUCER], FORBIDDEN[verb])
    assert _everything(hands) == before


def _everything(hands: Crew) -> list[list[tuple[Any, ...]]]:
    return [[tuple(row) for row in hands.fetch(f'SELECT * FROM "{SCHEMA}".{table}')] for table in TABLES]


DDL = (
    "CREATE TABLE {0}.mine ()",
    "CREATE FUNCTION {0}.mine() RETURNS void LANGUAGE sql AS ''",
    "DROP TABLE {0}.paused",
    "ALTER TABLE {0}.jobs ADD mine text",
    "TRUNCATE {0}.ready",
    "CREATE INDEX mine ON {0}.jobs (task)",
    "CREATE TRIGGER mine AFTER INSERT ON {0}.jobs EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "DROP SCHEMA {0} CASCADE",
    "INSERT INTO {0}.schema_versions (version, name, serves) VALUES (99, 'x', 99)",
)


@pytest.mark.parametrize("role", Role)
def test_nobody_but_the_owner_changes_the_schema(hands: Crew, role: Role) -> None:
    for statement in DDL:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            hands.as_(hands.names[role], statement.format(f'"{SCHEMA}"'))


@pytest.mark.parametrize("role", Role)
def test_roles_open_and_find_nothing_to_migrate_with_no_more_than_a_look_at_the_versions(
    hands: Crew, role: Role
) -> None:
    assert TABLES["schema_versions"][role] == ("SELECT",)
    assert hands.run(hands.names[role], lambda driver: driver.migrate()) == []


@pytest.mark.parametrize("role", Role)
def test_migration_that_somebody_else_tries_says_who_may(
    hands: Crew, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = [*sql.migrations(SCHEMA), (1000, "later", f'CREATE TABLE "{SCHEMA}".later ()')]
    monkeypatch.setattr(sql, "migrations", lambda _schema: more)
    with pytest.raises(AccessDenied, match="only the schema's owner migrates"):
        hands.run(hands.names[role], lambda driver: driver.migrate())


@pytest.mark.parametrize("role", Role)
def test_roles_see_nothing_of_the_applications_own_tables(hands: Crew, role: Role) -> None:
    hands.as_superuser("CREATE TABLE IF NOT EXISTS public.secrets (value text)")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        hands.as_(hands.names[role], "SELECT * FROM public.secrets")


# -- what is said --------------------------------------------------------------------------------------


def test_worker_without_the_rights_of_one_does_not_begin(hands: Crew) -> None:
    """One error, before anything is claimed, that names all that is missing."""
    with (
        Harbor(hands.url(hands.names[Role.PRODUCER])) as harbor,
        pytest.raises(
            AccessDenied, match=r"cannot run a worker .* it lacks UPDATE, DELETE on jobs; .*SELECT on paused"
        ),
    ):
        Worker(harbor).drain_sync()


def test_command_of_a_user_without_the_right_is_one_line(hands: Crew) -> None:
    result = CliRunner().invoke(cli, ["worker", "--url", hands.url(hands.names[Role.PRODUCER])])
    assert result.exit_code == 1
    assert "Traceback" not in result.output
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert "cannot run a worker" in line


def test_user_with_no_right_at_all_is_told_of_the_first_one(hands: Crew) -> None:
    stranger = quoted_role("stranger \\ %s")
    hands.as_superuser(f"CREATE ROLE {stranger} LOGIN")
    try:
        for verb in (lambda d: d.open(), lambda d: d.enqueue([duties.new("q")])):
            with pytest.raises(AccessDenied, match="lacks USAGE on the schema Harbor_1 of"):
                hands.run("stranger \\ %s", verb)
    finally:
        hands.as_superuser(f"DROP ROLE {stranger}")


# -- granting ------------------------------------------------------------------------------------------


def test_every_table_and_function_of_the_schema_is_granted_or_withheld_on_purpose(hands: Crew) -> None:
    """A migration that adds one has to say here who may use it."""
    tables = hands.fetch(
        "SELECT relname FROM pg_class WHERE relnamespace = $1::text::regnamespace AND relkind IN "
        "('r', 'p', 'v', 'm', 'S', 'f')",
        f'"{SCHEMA}"',
    )
    functions = hands.fetch(
        "SELECT proname FROM pg_proc WHERE pronamespace = $1::text::regnamespace", f'"{SCHEMA}"'
    )
    assert {row[0] for row in tables} == TABLES.keys()
    assert {row[0] for row in functions} == FUNCTIONS.keys()
    assert all(rights.keys() == set(Role) for rights in TABLES.values())


def test_functions_that_run_with_the_owners_rights_are_nobodys_unless_granted(hands: Crew) -> None:
    """… and look names up nowhere but where they mean."""
    rows = hands.fetch(
        "SELECT proname, proconfig, has_function_privilege('public', oid, 'EXECUTE') AS open FROM pg_proc "
        "WHERE prosecdef AND pronamespace = $1::text::regnamespace",
        f'"{SCHEMA}"',
    )
    assert rows
    for row in rows:
        assert not row["open"], row["proname"]
        assert any(setting.startswith("search_path=pg_catalog") for setting in row["proconfig"]), row[
            "proname"
        ]


def test_grants_made_again_leave_exactly_what_is_meant(hands: Crew) -> None:
    """What a role had beside that, from an older version or by hand, is taken away."""
    name = hands.names[Role.PRODUCER]
    hands.as_superuser(
        f'GRANT ALL ON ALL TABLES IN SCHEMA "{SCHEMA}" TO {quoted_role(name)}',
        f'GRANT ALL ON SCHEMA "{SCHEMA}" TO {quoted_role(name)}',
    )
    hands.grant()
    assert _privileges(hands, name) == {table: set(rights[Role.PRODUCER]) for table, rights in TABLES.items()}
    [row] = hands.fetch("SELECT has_schema_privilege($1::text, $2::text, 'CREATE')", name, SCHEMA)
    assert not row[0]


def test_one_name_may_have_several_roles(hands: Crew) -> None:
    name = hands.names[Role.ADMIN]
    hands.grant({Role.ADMIN: [name], Role.PRODUCER: [name]})
    try:
        both = {t: {*r[Role.PRODUCER], *r[Role.ADMIN]} for t, r in TABLES.items()}
        assert _privileges(hands, name) == both
        hands.run(name, duties.produce)
    finally:
        hands.grant()


def _privileges(hands: Crew, name: str) -> dict[str, set[str]]:
    rows = hands.fetch(
        "SELECT c.relname, r FROM pg_class AS c CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', "
        "'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS r WHERE c.relnamespace = $1::text::regnamespace "
        "AND c.relkind IN ('r', 'v') AND has_table_privilege($2::text, c.oid, r)",
        f'"{SCHEMA}"',
        name,
    )
    found: dict[str, set[str]] = {table: set() for table in TABLES}
    for row in rows:
        found[row[0]].add(row[1])
    return found


def test_what_the_command_prints_can_be_run_as_it_is(hands: Crew) -> None:
    name = hands.names[Role.WORKER]
    words = ["roles", "--worker", name, "--url", hands.url(hands.owner)]
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == "BEGIN;"
    hands.as_superuser(f'REVOKE ALL ON ALL TABLES IN SCHEMA "{SCHEMA}" FROM {quoted_role(name)}')
    hands.as_(hands.owner, result.stdout)
    assert _privileges(hands, name) == {table: set(rights[Role.WORKER]) for table, rights in TABLES.items()}


@pytest.mark.parametrize("name", ["", "a" * 64, "new\nline", "nul\0", "\ud800"])
def test_names_that_no_role_can_have_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="a database role's name is a text of 1 to 63 bytes"):
        grants("taskharbor", {Role.WORKER: [name]})


def test_roles_command_wants_a_role_and_a_postgresql_store() -> None:
    nothing = CliRunner().invoke(cli, ["roles", "--url", "postgresql://h/d"])
    assert nothing.exit_code == 2
    assert "--producer ROLE" in nothing.stderr
    elsewhere = CliRunner().invoke(cli, ["roles", "--worker", "w", "--url", "sqlite:///x.db"])
    assert elsewhere.exit_code == 1
    assert "only a store in PostgreSQL has roles" in elsewhere.stderr


def test_producer_and_worker_enqueue_from_plain_sql_and_an_admin_does_not(hands: Crew) -> None:
    statement = f'SELECT "{SCHEMA}".enqueue(\'task\', \'{{}}\', \'{{"queue": "sql", "tags": ["t"]}}\')'
    hands.as_(hands.names[Role.PRODUCER], statement)
    hands.as_(hands.names[Role.WORKER], statement)
    assert len(hands.fetch(f"SELECT FROM \"{SCHEMA}\".jobs WHERE queue = 'sql'")) == 2
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        hands.as_(hands.names[Role.ADMIN], statement)
