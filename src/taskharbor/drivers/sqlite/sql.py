"""Named statements, read once from the `.sql` files beside this module."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent


@cache
def statements(room: str) -> dict[str, str]:
    """The statements of `queries/<room>.sql`, by the names their `-- name:` lines give."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in (_FOLDER / "queries" / f"{room}.sql").read_text("utf-8").splitlines():
        if line.startswith("-- name: "):
            name = line.removeprefix("-- name: ").strip()
            found[name] = []
        elif name and line and not line.startswith("--"):
            found[name].append(line)
    return {name: "\n".join(lines) for name, lines in found.items()}


def migrations() -> list[tuple[int, str, str]]:
    """Every migration as (version, name, script), oldest first."""
    files = sorted((_FOLDER / "migrations").glob("*.sql"))
    return [(int(file.stem.split("_")[0]), file.stem, file.read_text("utf-8")) for file in files]
