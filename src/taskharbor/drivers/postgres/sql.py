"""Named statements, read once from the `.sql` files beside this module, for one schema."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from taskharbor.codec import shorten
from taskharbor.drivers.contract.records import RecordKind
from taskharbor.drivers.statements import Migration, migrations_in, named_statements
from taskharbor.errors import ConfigurationError

_FOLDER = Path(__file__).parent
_PLACEHOLDER = "{schema}"
_KIND = "{kind}"  # in a file that holds its statements once for each kind of record


def quoted(schema: str) -> str:
    """Return the schema's name as SQL. Only this, and the fixed names of the kinds of records, go into statements."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", schema) or schema.lower().startswith("pg_"):
        raise ConfigurationError(
            f"a schema's name has up to 63 letters, digits and underscores, does not begin with a digit or pg_, "
            f"and so is not {shorten(schema)}"
        )
    return f'"{schema}"'


@cache
def statements(schema: str) -> dict[str, str]:
    """Every statement of `queries/*.sql`, by name."""
    identifier = quoted(schema)
    found: dict[str, str] = {}
    for file in sorted((_FOLDER / "queries").glob("*.sql")):
        text = file.read_text("utf-8")
        for each in [text.replace(_KIND, kind) for kind in RecordKind] if _KIND in text else [text]:
            named = named_statements(each)
            assert not named.keys() & found.keys(), f"two statements are called {named.keys() & found.keys()}"
            found |= named
    return {name: text.replace(_PLACEHOLDER, identifier) for name, text in found.items()}


def migrations(schema: str) -> list[Migration]:
    """Every migration as (version, name, script), oldest first."""
    identifier = quoted(schema)
    return [
        (version, name, script.replace(_PLACEHOLDER, identifier))
        for version, name, script in migrations_in(_FOLDER / "migrations")
    ]


def split(script: str) -> list[str]:
    """The statements of a migration, for libraries that take one at a time. Bodies of functions are between `$$`."""
    found: list[str] = []
    pending: list[str] = []
    in_body = False
    for line in script.splitlines():
        pending.append(line)
        in_body ^= line.count("$$") % 2 == 1
        if not in_body and line.endswith(";"):
            found.append("\n".join(pending).strip().removesuffix(";"))
            pending = []
    assert not "".join(pending).strip(), f"a migration ends within a statement: {pending}"
    return found
