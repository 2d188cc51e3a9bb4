"""The backend for Django's tasks, with each Django that there is and on each database."""

from __future__ import annotations

from typing import Any

import pytest

from tests.django import environments

every_django = pytest.mark.parametrize("series", environments.SERIES)


@every_django
def test_cases_hold(series: str, database: dict[str, Any]) -> None:
    environments.project(series, database).cases("case_contract", "case_transactions", "case_dashboard")


def test_times_are_naive_without_use_tz(project: environments.Project) -> None:
    project.cases("case_naive", SHOP_USE_TZ="0")


@every_django
def test_tests_of_a_project_run_in_the_database_that_django_makes(
    series: str, database: dict[str, Any]
) -> None:
    done = environments.project(series, database).manage("test", "shop", "--noinput")
    assert done.returncode == 0, done.stdout
    assert "Ran 2 tests" in done.stdout
