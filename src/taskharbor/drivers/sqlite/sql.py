"""Named statements, read once from the `.sql` files beside this module."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from taskharbor.drivers.statements import Migration, migrations_in, named_statements
from taskharbor.drivers.stored import FIRST_NUMBER_MAX, INSTANT_MAX, INSTANT_MIN, NUMBER_MAX

_FOLDER = Path(__file__).parent
_LIMITS = {
    "{number_max}": NUMBER_MAX,
    "{first_number_max}": FIRST_NUMBER_MAX,
    "{instant_min}": INSTANT_MIN,
    "{instant_max}": INSTANT_MAX,
}


@cache
def statements(room: str) -> dict[str, str]:
    """The statements of `queries/<room>.sql`, by name, with the limits of what can be read filled in."""
    text = (_FOLDER / "queries" / f"{room}.sql").read_text("utf-8")
    for placeholder, limit in _LIMITS.items():
        text = text.replace(placeholder, str(limit))
    return named_statements(text)


def migrations() -> list[Migration]:
    """Every migration as (version, name, script), oldest first."""
    return migrations_in(_FOLDER / "migrations")
