"""Named statements, read once from the `.sql` files beside this module."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from taskharbor.drivers.statements import migrations_in, named_statements

_FOLDER = Path(__file__).parent


@cache
def statements(room: str) -> dict[str, str]:
    """The statements of `queries/<room>.sql`, by name."""
    return named_statements((_FOLDER / "queries" / f"{room}.sql").read_text("utf-8"))


def migrations() -> list[tuple[int, str, str]]:
    """Every migration as (version, name, script), oldest first."""
    return migrations_in(_FOLDER / "migrations")
