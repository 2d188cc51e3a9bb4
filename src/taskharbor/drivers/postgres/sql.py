"""Named statements, read once from the `.sql` files beside this module, for one schema."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

_FOLDER = Path(__file__).parent
_PLACEHOLDER = "{schema}"


def quoted(schema: str) -> str:
    """The schema's name as SQL: the only thing that is ever put into a statement's text."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,62}", schema) or schema.lower().startswith("pg_"):
        raise ConfigurationError(
            f"a schema's name has up to 63 letters, digits and underscores, does not begin with a digit or pg_, "
            f"and so is not {shorten(schema)}"
        )
    return f'"{schema}"'


@cache
def statements(schema: str) -> dict[str, str]:
    """Every statement of `queries/*.sql` by the name its `-- name:` line gives."""
    found: dict[str, list[str]] = {}
    for file in sorted((_FOLDER / "queries").glob("*.sql")):
        name = ""
        for line in file.read_text("utf-8").splitlines():
            if line.startswith("-- name: "):
                name = line.removeprefix("-- name: ").strip()
                assert name not in found, f"two statements are called {name}"
                found[name] = []
            elif name and line and not line.startswith("--"):
                found[name].append(line)
    identifier = quoted(schema)
    return {name: "\n".join(lines).replace(_PLACEHOLDER, identifier) for name, lines in found.items()}


def migrations(schema: str) -> list[tuple[int, str, str]]:
    """Every migration as (version, name, script), oldest first."""
    identifier = quoted(schema)
    return [
        (
            int(file.stem.split("_")[0]),
            file.stem,
            file.read_text("utf-8").replace(_PLACEHOLDER, identifier),
        )
        for file in sorted((_FOLDER / "migrations").glob("*.sql"))
    ]
