"""The `.sql` files beside a driver: statements by name, and migrations in their order."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

Migration = tuple[int, str, str]  # version, name, script

_MADE = re.compile(r"^CREATE (TABLE|VIEW|FUNCTION|SEQUENCE|DOMAIN) ([^\s(;]+)", re.MULTILINE)


def named_statements(text: str) -> dict[str, str]:
    """The statements of one file, by the names that their `-- name:` lines give; without the comments."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in text.splitlines():
        if line.startswith("-- name: "):
            name = line.removeprefix("-- name: ").strip()
            assert name not in found, f"two statements are called {name}"
            found[name] = []
        elif name and line and not line.startswith("--"):
            found[name].append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def migrations_in(folder: Path) -> list[Migration]:
    """Every migration as (version, name, script), oldest first.

    It is a file such as `0016_initial.sql`, or a folder `0016_initial` whose files together are one script.
    """
    found: list[Migration] = []
    for entry in sorted(folder.glob("[0-9]*_*")):
        files = sorted(entry.glob("*.sql")) if entry.is_dir() else [entry]
        script = "\n".join(file.read_text("utf-8") for file in files)
        found.append((int(entry.name.split("_")[0]), entry.stem, script))
    return found


def made_by(*scripts: str) -> dict[str, list[str]]:
    """The names of what these scripts create, by kind, without the indexes and triggers, which go with their table."""
    made: dict[str, list[str]] = defaultdict(list)
    for script in scripts:
        for kind, name in _MADE.findall(script):
            made[kind].append(name)
    return made
