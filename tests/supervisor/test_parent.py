"""What the supervisor is: small, without user code, and clear about what it cannot do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from taskharbor.records import State
from tests.supervisor.conftest import COMMAND, Shop

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals")

APP = "from taskharbor import Harbor\nimport asyncio\n"


def test_the_supervisor_imports_no_user_code(small: Shop):
    job = small.harbor.enqueue("note", {"n": 1})
    script = (
        "import sys\n"
        "from taskharbor.cli import cli\n"
        "cli(['worker', '-A', 'shop:harbor', '--processes', '1', '--drain'], standalone_mode=False)\n"
        "print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env=small.environment,
        cwd=small.folder,
    )
    assert "shop" not in done.stdout.split()
    assert job.refresh().state is State.SUCCEEDED


def run(shop: Shop, *words: str, app: str = "shop:harbor") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND[:-1], app, "--processes", "2", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=shop.environment,
        cwd=shop.folder,
    )


@pytest.mark.parametrize(
    ("app", "words", "told", "code"),
    [
        ("nowhere:harbor", (), "no module is called 'nowhere'", 1),
        ("shop", (), "--app takes module:object", 2),
        ("shop:harbor", ("--lease-seconds", "0"), "lease_seconds must be 0.1 or more", 1),
        ("shop:harbor", ("--stuck-seconds", "0"), "--stuck-seconds must be more than 0", 2),
    ],
)
def test_what_no_process_can_begin_with_is_one_line_and_the_end(small: Shop, app, words, told, code):
    done = run(small, *words, "--log-level", "error", app=app)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("Error: ")] == [
        done.stderr.splitlines()[-1]
    ]
    assert "Traceback" not in done.stderr


def test_options_of_the_supervisor_need_one(small: Shop):
    done = subprocess.run(
        [*COMMAND, "--stuck-seconds", "5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env=small.environment,
        cwd=small.folder,
    )
    assert done.returncode == 2
    assert "--stuck-seconds is for a supervisor: add --processes" in done.stderr


def test_a_store_in_memory_is_refused(small: Shop):
    Path(small.folder, "inmemory.py").write_text(APP + "harbor = Harbor('memory://')\n")
    done = run(small, app="inmemory:harbor")
    assert done.returncode == 1
    assert "a store in memory belongs to one process" in done.stderr


def test_a_store_without_a_url_is_left_to_the_workers_themselves(small: Shop):
    Path(small.folder, "own.py").write_text(
        APP
        + "from taskharbor.drivers.sqlite import SQLiteDriver\n"
        + f"harbor = Harbor(driver=SQLiteDriver({str(small.folder / 'harbor.db')!r}))\n"
        + "@harbor.task(name='note')\n"
        + "async def note(n: int) -> int:\n    await asyncio.sleep(8)\n    return n\n"
    )
    job = small.harbor.enqueue("note", {"n": 4})
    done = run(small, "--drain", "--lease-seconds", "5", app="own:harbor")
    assert done.returncode == 0, done.stderr
    assert "each worker extends its own leases" in done.stderr
    assert job.result(timeout=0) == 4
    assert [str(row.status) for row in job.history()] == ["succeeded"]
