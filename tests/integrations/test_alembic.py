"""TaskHarbor's tables in the migrations of an application: made, left alone and removed by Alembic's own commands."""

from __future__ import annotations

import asyncio
import io
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.util.exc import CommandError

from taskharbor import ConfigurationError, Harbor, SchemaError
from taskharbor.drivers.postgres import sql as postgres_sql
from taskharbor.drivers.postgres.schema import latest_version
from taskharbor.drivers.sqlite import sql as sqlite_sql
from tests.postgres import store

LATEST = latest_version()
CREATE_ORDERS = "op.create_table('orders', sa.Column('number', sa.Integer, primary_key=True))"
URLS = ["sqlite", "sqlite+aiosqlite", "postgresql+psycopg", "postgresql+asyncpg"]

MODELS = """
from sqlalchemy import Column, Integer, MetaData, Table

metadata = MetaData()
Table("orders", metadata, Column("number", Integer, primary_key=True))
"""
REVISION = '''
"""{words}"""
import sqlalchemy as sa
from alembic import op
from taskharbor.integrations.alembic import apply_migration, drop_tables

revision, down_revision, branch_labels, depends_on = "{name}", {after!r}, None, None


def upgrade():
    {upgrade}


def downgrade():
    {downgrade}
'''


class Project:
    """An application in a folder, with an environment that `alembic init` has made."""

    def __init__(self, folder: Path, url: str, harbor_url: str) -> None:
        self.folder = folder
        self.harbor_url = harbor_url
        self.config = Config(stdout=io.StringIO())
        self.config.set_main_option("script_location", str(folder / "migrations"))
        self.config.set_main_option("sqlalchemy.url", url)
        template = "async" if "aiosqlite" in url or "asyncpg" in url else "generic"
        self.config.config_file_name = str(folder / "alembic.ini")
        command.init(self.config, str(folder / "migrations"), template=template)
        self.config.config_file_name = None  # it would configure the logging of this process
        self._edit_environment()

    def _edit_environment(self) -> None:
        environment = self.folder / "migrations/env.py"
        text = environment.read_text()
        (self.folder / "migrations/models.py").write_text(MODELS)
        text = text.replace(
            "target_metadata = None",
            "import runpy, pathlib\n"
            "from taskharbor.integrations.alembic import include_name\n"
            "target_metadata = runpy.run_path(str(pathlib.Path(__file__).parent / 'models.py'))['metadata']",
        )
        text = text.replace(
            "target_metadata=target_metadata",
            "target_metadata=target_metadata, include_schemas=True, include_name=include_name",
        )
        assert text.count("include_name=include_name") == 2
        environment.write_text(text)

    def revise(self, name: str, upgrade: str, downgrade: str = "pass", after: str | None = None) -> None:
        text = REVISION.format(words=name, name=name, after=after, upgrade=upgrade, downgrade=downgrade)
        (self.folder / "migrations/versions" / f"{name}.py").write_text(text)

    def upgrade(self) -> None:
        command.upgrade(self.config, "head")

    def script(self, of: Callable[..., None], revision: str) -> str:
        """What `alembic upgrade --sql` or `alembic downgrade --sql` writes."""
        self.config.output_buffer = io.StringIO()
        of(self.config, revision, sql=True)
        return self.config.output_buffer.getvalue()


@pytest.fixture(params=URLS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    if request.param.startswith("sqlite"):
        file = tmp_path / "shop.db"
        yield Project(tmp_path, f"{request.param}:///{file}", f"sqlite:///{file}")
        return
    with store.database() as dsn:
        yield Project(tmp_path, dsn.replace("postgresql", request.param, 1), dsn)


def contents(harbor_url: str, schema: str = "taskharbor") -> list[tuple[str, ...]]:
    """Everything that a database has of ours, as its catalogue tells it."""
    if harbor_url.startswith("sqlite"):
        with closing(sqlite3.connect(harbor_url.removeprefix("sqlite:///"))) as connection:
            return sorted(
                (kind, name, text)
                for kind, name, text in connection.execute("SELECT type, name, sql FROM sqlite_master")
                if name.startswith("taskharbor_")
            )
    rows = store.query(
        harbor_url,
        """
        SELECT 'schema' AS kind, nspname AS name, '' AS detail FROM pg_namespace WHERE nspname = $1
        UNION ALL SELECT 'column', table_name || '.' || column_name, data_type || coalesce(column_default, '')
            FROM information_schema.columns WHERE table_schema = $1
        UNION ALL SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = $1
        UNION ALL SELECT 'constraint', conname, pg_get_constraintdef(oid)
            FROM pg_constraint WHERE connamespace = to_regnamespace($1)
        UNION ALL SELECT 'function', proname, pg_get_functiondef(oid) || coalesce(proacl::text, '')
            FROM pg_proc WHERE pronamespace = to_regnamespace($1)
        UNION ALL SELECT 'relation', relname, coalesce(reloptions::text, '')
            FROM pg_class WHERE relnamespace = to_regnamespace($1) AND relkind <> 't'
        UNION ALL SELECT 'trigger', tgname, pg_get_triggerdef(t.oid) FROM pg_trigger AS t
            JOIN pg_class AS c ON c.oid = t.tgrelid WHERE c.relnamespace = to_regnamespace($1) AND NOT tgisinternal
        UNION ALL SELECT 'comment', p.proname, obj_description(p.oid) FROM pg_proc AS p
            WHERE p.pronamespace = to_regnamespace($1)
        """,
        schema,
    )
    return sorted(tuple(each or "" for each in row) for row in rows)


def by_the_driver(project: Project) -> list[tuple[str, ...]]:
    """What `taskharbor migrate` makes."""

    def made(url: str) -> list[tuple[str, ...]]:
        with Harbor(url) as harbor:
            harbor.migrate()
        return contents(url)

    if project.harbor_url.startswith("sqlite"):
        return made(f"sqlite:///{project.folder / 'other.db'}")
    with store.database() as dsn:
        return made(dsn)


def test_revision_makes_what_the_driver_makes_and_the_harbor_works(project: Project) -> None:
    project.revise("jobs", f"apply_migration({LATEST})", "drop_tables()")
    project.upgrade()
    assert contents(project.harbor_url) == by_the_driver(project)
    with Harbor(project.harbor_url) as harbor:
        assert harbor.migrate() == []
        harbor.enqueue("t")
        assert all(check.ok for check in asyncio.run(harbor.driver.check()) if check.name == "schema")
        assert harbor.jobs.counts()["ready"] == 1


def test_downgrade_removes_everything_and_can_be_upgraded_again(project: Project) -> None:
    project.revise("jobs", f"apply_migration({LATEST})", "drop_tables()")
    for _ in range(2):
        project.upgrade()
        assert contents(project.harbor_url)
        command.downgrade(project.config, "base")
        assert contents(project.harbor_url) == []


def test_script_does_what_the_revision_does(project: Project) -> None:
    project.revise("jobs", f"apply_migration({LATEST})", "drop_tables()")
    execute_script(project, project.script(command.upgrade, "head"))
    assert contents(project.harbor_url) == by_the_driver(project)
    with Harbor(project.harbor_url) as harbor:
        harbor.enqueue("t")
    execute_script(project, project.script(command.downgrade, "jobs:base"))
    assert contents(project.harbor_url) == []


def execute_script(project: Project, script: str) -> None:
    if project.harbor_url.startswith("sqlite"):
        with closing(sqlite3.connect(project.harbor_url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
    else:
        store.execute(project.harbor_url, script)


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection")  # Alembic looks at every table first
def test_autogenerate_leaves_the_tables_alone(project: Project) -> None:
    project.revise("jobs", f"apply_migration({LATEST})", "drop_tables()")
    project.upgrade()
    command.revision(project.config, "orders", autogenerate=True)
    [written] = (project.folder / "migrations/versions").glob("*_orders.py")
    assert "op.create_table('orders'" in written.read_text()
    assert "taskharbor" not in written.read_text()
    project.upgrade()
    command.check(project.config)  # nothing is left to do


@pytest.mark.filterwarnings("ignore:Skipped unsupported reflection")
def test_without_include_name_autogenerate_would_remove_them(project: Project) -> None:
    """So the test before this one can fail."""
    environment = project.folder / "migrations/env.py"
    environment.write_text(environment.read_text().replace(", include_name=include_name", ""))
    project.revise(
        "all",
        f"apply_migration({LATEST}); op.create_table('orders', sa.Column('number', sa.Integer, primary_key=True))",
    )
    project.upgrade()
    with pytest.raises(CommandError, match="New upgrade operations detected.*remove_table"):
        command.check(project.config)


def test_tables_that_exist_are_left_as_they_are(project: Project) -> None:
    with Harbor(project.harbor_url) as harbor:
        harbor.migrate()
        harbor.enqueue("t")
        project.revise("jobs", f"apply_migration({LATEST})")
        project.upgrade()
        assert harbor.jobs.counts()["ready"] == 1


def test_failed_revision_leaves_nothing_behind(project: Project) -> None:
    project.revise("jobs", f"apply_migration({LATEST}); raise ZeroDivisionError")
    with pytest.raises(ZeroDivisionError):
        project.upgrade()
    assert contents(project.harbor_url) == []


@pytest.mark.parametrize("number", [LATEST + 1, 1, 0])
def test_unknown_migration_is_refused(project: Project, number: int) -> None:
    project.revise("jobs", f"apply_migration({number})")
    with pytest.raises(ConfigurationError, match=f"has no migration {number}, only .*{LATEST}; name one"):
        project.upgrade()


def test_migration_without_the_one_before_it_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_sqlite, on_postgres = sqlite_sql.migrations(), postgres_sql.migrations("taskharbor")
    novelty = (LATEST + 1, "novelty", "CREATE TABLE taskharbor_novelty (x integer);")
    monkeypatch.setattr(sqlite_sql, "migrations", lambda: [*on_sqlite, novelty])
    monkeypatch.setattr(postgres_sql, "migrations", lambda _schema: [*on_postgres, novelty])
    project.revise("second", f"apply_migration({LATEST + 1})")
    with pytest.raises(
        SchemaError, match=rf"{LATEST + 1} of TaskHarbor follows {LATEST}.*apply_migration\({LATEST}\)"
    ):
        project.upgrade()
    assert contents(project.harbor_url) == []
    project.revise("first", f"apply_migration({LATEST})")
    project.revise("second", f"apply_migration({LATEST + 1})", after="first")
    project.upgrade()
    script = project.script(command.upgrade, "first:second")
    assert "CREATE TABLE taskharbor_novelty" in script
    assert "taskharbor_jobs" not in script
    assert ".jobs" not in script


def test_schema_of_another_name_is_made_removed_and_ignored(tmp_path: Path) -> None:
    with store.database() as dsn:
        project = Project(tmp_path, dsn.replace("postgresql", "postgresql+psycopg", 1), dsn)
        environment = project.folder / "migrations/env.py"
        environment.write_text(
            environment.read_text().replace(
                "include_name=include_name",
                "include_name=__import__('functools').partial(include_name, schema='jobs')",
            )
        )
        store.execute(dsn, "CREATE SCHEMA jobs", "CREATE TABLE jobs.mine (x integer)")
        project.revise(
            "jobs",
            f"apply_migration({LATEST}, schema='jobs'); {CREATE_ORDERS}",
            "drop_tables(schema='jobs')",
        )
        project.upgrade()
        command.check(project.config)
        with Harbor(f"{dsn}?schema=jobs") as harbor:
            harbor.enqueue("t")
        command.downgrade(project.config, "base")
        assert [row[:2] for row in contents(dsn, "jobs") if row[0] == "relation"] == [("relation", "mine")]


def test_other_databases_are_refused(tmp_path: Path) -> None:
    project = Project(tmp_path, "mysql+pymysql://localhost/shop", "")
    project.revise("jobs", f"apply_migration({LATEST})")
    with pytest.raises(ConfigurationError, match="in SQLite or PostgreSQL.*is of kind mysql"):
        project.script(command.upgrade, "head")


def test_every_store_has_the_same_migrations() -> None:
    """A revision names a migration by its number, whatever store it runs on."""
    on_sqlite = [number for number, _, _ in sqlite_sql.migrations()]
    assert on_sqlite == [number for number, _, _ in postgres_sql.migrations("any")]


def test_statement_ends_outside_of_bodies_only() -> None:
    script = "CREATE TABLE a (\n  b text  -- not; here\n);\nCREATE FUNCTION f() AS $$\n  SELECT 1;\n$$;\n\nGRANT x;\n"
    assert postgres_sql.split(script) == [
        "CREATE TABLE a (\n  b text  -- not; here\n)",
        "CREATE FUNCTION f() AS $$\n  SELECT 1;\n$$",
        "GRANT x",
    ]
