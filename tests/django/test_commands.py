"""`manage.py`: migrations, checks, and the command line of TaskHarbor."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from taskharbor.drivers.postgres import schema as postgres_schema
from taskharbor.drivers.sqlite import schema as sqlite_schema
from tests.django import environments
from tests.django.environments import Project

MIGRATIONS = environments.ROOT / "src/taskharbor/integrations/django/migrations"


def _enqueue(project: Project, *lines: str) -> str:
    code = "\n".join(["import django; django.setup()", "from shop import tasks", *lines])
    done = project.run("-c", code, DJANGO_SETTINGS_MODULE="shop.settings")
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def test_last_migration_makes_the_schema_that_the_drivers_need() -> None:
    latest = max(MIGRATIONS.glob("[0-9]*.py")).read_text("utf-8")
    [(on_postgres, on_sqlite)] = re.findall(r"UpgradeSchema\(postgresql=(\d+), sqlite=(\d+)\)", latest)
    assert (int(on_postgres), int(on_sqlite)) == (
        postgres_schema.latest_version(),
        sqlite_schema.latest_version(),
    ), "the schema has a new version: add a migration with an UpgradeSchema to taskharbor.integrations.django"


def test_migrate_alone_makes_the_tables(project: Project) -> None:
    done = project.manage("migrate")
    assert "WARNINGS" not in done.stdout
    assert "Applying taskharbor.0001_initial... OK" in done.stdout, done.stdout
    assert "No changes detected" in project.manage("makemigrations", "--check", "--dry-run").stdout
    assert "No migrations to apply" in project.manage("migrate").stdout
    done = project.manage("harbor", "doctor", "--json")
    # What else it says is about the server of the tests, which is quick rather than durable.
    document, _ = json.JSONDecoder().raw_decode(done.stdout)
    checks = {each["name"]: each for each in document["checks"]}
    assert checks["schema"]["status"] == "ok", checks


def test_tables_that_exist_already_are_kept(project: Project) -> None:
    assert project.manage("harbor", "migrate").returncode == 0  # by TaskHarbor itself, before Django's own
    job = project.manage("harbor", "enqueue", "shop.tasks.add", '{"args": [1], "kwargs": {}}', "--json")
    assert job.returncode == 0, job.stdout
    assert project.manage("migrate").returncode == 0
    listed = project.manage("harbor", "list", "--json")
    assert len(json.loads(listed.stdout)["items"]) == 1, listed.stdout


def test_sqlmigrate_shows_the_drivers_statements(project: Project, kind: str) -> None:
    shown = project.manage("sqlmigrate", "taskharbor", "0001").stdout
    assert ("CREATE TABLE taskharbor_jobs" if kind == "sqlite" else 'CREATE TABLE "taskharbor".jobs') in shown
    assert "'0016_initial'" in shown


def test_no_migration_leads_back(project: Project) -> None:
    project.manage("migrate")
    done = project.manage("migrate", "taskharbor", "zero")
    assert done.returncode != 0
    assert "IrreversibleError" in done.stdout


def test_enqueue_before_migrate_says_what_to_run(project: Project) -> None:
    code = "import django; django.setup(); from shop import tasks; tasks.add.enqueue(1)"
    done = project.run("-c", code, DJANGO_SETTINGS_MODULE="shop.settings")
    assert done.returncode != 0
    assert "python manage.py migrate" in done.stdout


@pytest.mark.parametrize("kind", ["sqlite"])
def test_reading_before_migrate_names_djangos_command(project: Project) -> None:
    done = project.manage("harbor", "list")
    assert done.returncode != 0
    assert "make it with `manage.py migrate`" in done.stdout


def test_commands_work_on_the_jobs_of_the_project(project: Project) -> None:
    project.manage("migrate")
    added, failed = _enqueue(
        project, "print(tasks.add.enqueue(1, b=2).id, tasks.fails.enqueue('no').id)"
    ).split()
    waiting = json.loads(project.manage("harbor", "list", "--state", "ready", "--json").stdout)
    assert {job["id"] for job in waiting["items"]} == {added, failed}
    done = project.manage("harbor", "worker", "--drain", "--processes", "2", "--log-format", "json")
    assert done.returncode == 0, done.stdout
    dead = project.manage("harbor", "dlq", "list", "--json")
    # The three attempts come at once, so draining waits for none of them.
    assert [job["id"] for job in json.loads(dead.stdout)["items"]] == [failed], done.stdout
    why = project.manage("harbor", "why", failed)
    assert "ValueError: no" in why.stdout
    shown = json.loads(project.manage("harbor", "inspect", added, "--json").stdout)
    assert shown["result"] == 3, shown


def test_worker_of_another_backend(project: Project) -> None:
    project.manage("migrate")
    done = project.manage("harbor", "--backend", "quick", "worker", "--drain")
    assert done.returncode == 0, done.stdout
    done = project.manage("harbor", "--backend=nosuch", "list")
    assert done.returncode != 0
    assert "nosuch" in done.stdout
    assert "unexpected" not in done.stdout


def test_worker_starts_from_another_folder(project: Project, tmp_path: Path) -> None:
    """The processes of a worker import the project as manage.py does: from its folder."""
    project.manage("migrate")
    environ = dict(project.environ)
    path = [each for each in environ["PYTHONPATH"].split(":") if each != str(environments.SITE)]
    there = Project(project.python, environ | {"PYTHONPATH": ":".join(path)}, tmp_path)
    done = there.run(environments.SITE / "manage.py", "harbor", "worker", "--drain", "--processes", "1")
    assert done.returncode == 0, done.stdout


def test_worker_executes_few_tasks_at_once_unless_told_otherwise(project: Project) -> None:
    """Each may hold a connection to Django's database."""
    project.manage("migrate")
    assert "concurrency=10" in project.manage("harbor", "worker", "--drain").stdout
    assert "concurrency=3" in project.manage("harbor", "worker", "--drain", "--concurrency", "3").stdout


def test_usage_errors_name_the_command(project: Project) -> None:
    done = project.manage("harbor", "worker", "--nonsense")
    assert done.returncode == 2
    assert "manage.py harbor worker --help" in done.stdout


# -- checks --


def _check(project: Project, *arguments: str, **environ: str) -> str:
    return project.manage("check", *arguments, **environ).stdout


def test_sound_project_passes_the_checks(project: Project) -> None:
    project.manage("migrate")
    assert "no issues" in _check(project, "--database", "default")


@pytest.mark.parametrize("kind", ["sqlite"])
def test_check_warns_of_sqlite_that_does_not_lock_at_once(project: Project) -> None:
    database = json.loads(project.environ["SHOP_DATABASE"])
    shown = _check(project, SHOP_DATABASE=json.dumps(database | {"OPTIONS": {}}))
    assert "taskharbor.W001" in shown
    assert "IMMEDIATE" in shown


@pytest.mark.parametrize("kind", ["sqlite"])
def test_check_warns_of_sqlite_in_production(project: Project) -> None:
    assert "taskharbor.W002" not in _check(project)
    assert "taskharbor.W002" in _check(project, SHOP_DEBUG="0")


def test_check_warns_of_missing_migrations(project: Project) -> None:
    assert "taskharbor.W003" not in _check(project)  # nothing looks into the database unasked
    shown = _check(project, "--database", "default")
    assert "taskharbor.W003" in shown
    assert "manage.py migrate" in shown


def test_check_warns_of_jobs_in_unknown_queues(project: Project) -> None:
    project.manage("migrate")
    _enqueue(project, "tasks.add.enqueue(1)")
    job = ("shop.tasks.add", '{"args": [1], "kwargs": {}}', "--queue", "forgotten")
    assert project.manage("harbor", "enqueue", *job).returncode == 0
    shown = _check(project, "--database", "default")
    assert "taskharbor.W004" in shown
    assert "forgotten" in shown


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ({"OPTIONS": {"database": "nosuch"}}, "taskharbor.E001"),
        ({"OPTIONS": {"store": {"nonsense": "1", "synchronous": "never"}}}, "taskharbor.E004"),
        ({"OPTIONS": {"harbor": {"retention": "for ever"}}}, "taskharbor.E004"),
        ({"OPTIONS": {"database_alias": "default"}}, "takes database, store, harbor"),
        ({"OPTIONS": {"store": "schema=x"}}, "is a dict, not"),
        ({"OPTIONS": {"harbor": {"url": "memory://"}}}, "'database' names"),
        (
            {"OPTIONS": {"harbor": {"retentio": {}}}},
            "has 'retentio', which Harbor does not take; it takes retention",
        ),
    ],
)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_check_names_wrong_settings(project: Project, tasks: dict[str, object], expected: str) -> None:
    backend = {"BACKEND": "taskharbor.integrations.django.Backend", **tasks}
    shown = _check(project, SHOP_TASKS=json.dumps({"another": backend}))
    assert expected in shown


@pytest.mark.parametrize("kind", ["sqlite"])
def test_check_names_an_app_that_is_not_installed(project: Project) -> None:
    assert "taskharbor.E003" in _check(project, SHOP_WITHOUT="taskharbor.integrations.django")
