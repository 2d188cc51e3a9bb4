"""The example project does what it says, on both databases, with every Django."""

from __future__ import annotations

from typing import Any

import pytest

from tests.django import environments

EXAMPLE = environments.ROOT / "examples" / "django_shop"


@pytest.mark.parametrize("series", environments.SERIES)
def test_example_sells_and_a_refused_card_leaves_nothing_behind(
    series: str, kind: str, database: dict[str, Any]
) -> None:
    shop = environments.project(series, database, EXAMPLE)
    if kind == "sqlite":
        environ = {"SHOP_FILE": database["NAME"]}
    else:
        environ = {"DATABASE_URL": "postgresql://{USER}@{HOST}:{PORT}/{NAME}".format(**database)}
    assert shop.manage("migrate", **environ).returncode == 0
    for order in (1, 2):  # a second visit finds what the first has left
        done = shop.manage("visit", **environ)
        assert done.returncode == 0, done.stdout
        assert "placed order" in done.stdout, order
        assert "receipt for ana@example.org: 42; the bank answered at attempt 2" in done.stdout
    assert "No changes detected" in shop.manage("makemigrations", "--check", **environ).stdout
    assert "no issues" in shop.manage("check", "--database", "default", **environ).stdout
