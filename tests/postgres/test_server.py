"""The server of the tests, started by hand: `python -m tools.postgres_server`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

TOOL = [sys.executable, "-m", "tools.postgres_server"]
ROOT = Path(__file__).parents[2]
ASK = """
import asyncio, asyncpg, os
async def ask():
    connection = await asyncpg.connect(os.environ["DATABASE_URL"])
    print(await connection.fetchval("SHOW work_mem"))
    await connection.close()
asyncio.run(ask())
raise SystemExit(7)
"""


def run(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({"TMPDIR": str(folder)} if folder else {})
    return subprocess.run(
        [*TOOL, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own: the server, which never runs as root, could not go through to it."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


def test_help_says_what_it_does_and_how() -> None:
    done = run("--help")
    assert done.returncode == 0
    for words in (
        "usage: python -m tools.postgres_server",
        "$DATABASE_URL",
        "--port",
        "--set NAME=VALUE",
        "PATH",
    ):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "many"], "a port is a number from 1 to 65535, not 'many'"),
        (["--set", "work_mem"], "a setting looks like work_mem=64MB, not 'work_mem'"),
        (["--sets"], "unrecognized arguments"),
    ],
)
def test_mistakes_are_told_in_one_line(arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr.splitlines()[-1]


def test_a_command_has_its_address_and_the_server_goes_with_it(folder: Path) -> None:
    done = run("--set", "work_mem=5MB", sys.executable, "-c", ASK, folder=folder)
    assert (done.returncode, done.stdout) == (7, "5MB\n"), done.stderr
    assert list(folder.iterdir()) == []


def test_a_setting_that_the_server_refuses_is_told(folder: Path) -> None:
    done = run("--set", "work_mem=much", "true", folder=folder)
    assert done.returncode == 1
    assert 'invalid value for parameter "work_mem": "much"' in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_runs_until_it_is_interrupted_and_leaves_nothing_behind(folder: Path, how: signal.Signals) -> None:
    with subprocess.Popen(
        TOOL, cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}, stdout=subprocess.PIPE, text=True
    ) as tool:
        assert tool.stdout is not None
        address = tool.stdout.readline().strip()
        assert asyncio.run(answers(address))
        tool.send_signal(how)
        assert tool.wait(60) == 128 + how
    assert list(folder.iterdir()) == []
    with pytest.raises(OSError):
        asyncio.run(answers(address))


async def answers(address: str) -> bool:
    connection = await asyncpg.connect(address)
    try:
        return bool(await connection.fetchval("SELECT true"))
    finally:
        await connection.close()
