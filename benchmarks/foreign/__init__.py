"""Queues of other languages: the programs in this folder, built where their toolchain is installed.

Each program speaks the protocol of `node/protocol.mjs`: one JSON command a line, one JSON answer a line.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
NODE_FOLDER = HERE / "node"
NODE = NODE_FOLDER / "node_modules/.bin/node"  # a registry package: the machine's own may be too old for them
RIVER = HERE / "river/build/river"


def install() -> Iterator[str]:
    """Fetch and build each program; yield the reason for each that cannot be had."""
    npm = ("npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel", "error")
    yield from _made("graphile-worker and pg-boss", npm, NODE_FOLDER)
    yield from _made("River", ("go", "build", "-o", str(RIVER), "."), RIVER.parent.parent)


def _made(what: str, command: tuple[str, ...], folder: Path) -> Iterator[str]:
    if shutil.which(command[0]) is None:
        yield f"{what}: {command[0]} is not installed"
    elif subprocess.run(command, cwd=folder, check=False).returncode:
        yield f"{what}: `{' '.join(command)}` failed"


def require(program: Path) -> None:
    """Refuse the import of a contestant whose program is not built; the report then lists it as absent."""
    if not program.exists():
        raise ImportError(f"{program.name} is not built: `python -m benchmarks.installing` builds it")


def node_version(package: str) -> str:
    described = json.loads((NODE_FOLDER / "node_modules" / package / "package.json").read_text())
    return str(described["version"])
