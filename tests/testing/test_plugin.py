"""The pytest plugin in a suite of its own: the application's harbor, other people's fixtures, anyio, and its cost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SHOP = """
from taskharbor import Harbor

harbor = Harbor("sqlite:///shop.db")
sent = []

@harbor.task
def send(to: str) -> None:
    sent.append(to)

def checkout(to):
    send.enqueue(to)
"""

TESTS_OF_SHOP = """
import pathlib
import pytest
import shop
from taskharbor.testing import assert_enqueued, enqueued

def test_every_test_is_on_memory_even_without_a_fixture():
    shop.checkout("ada@example.com")
    assert_enqueued(shop.send, to="ada@example.com")

def test_each_test_has_a_store_of_its_own(harbor, drain, clock):
    assert harbor is shop.harbor and enqueued(shop.send) == []
    assert clock.datetime.isoformat() == "2026-03-01T09:00:00+00:00"
    shop.checkout("bob@example.com")
    drain()
    assert shop.sent == ["bob@example.com"]

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
async def test_with_anyio(harbor, drain):
    await shop.send.aenqueue("carol@example.com")
    [ran] = await drain.async_()
    assert str(ran.status) == "succeeded"

def test_no_store_was_made():
    assert not pathlib.Path("shop.db").exists()
"""

TESTS_WITH_OWN_FIXTURES = """
import pytest

@pytest.fixture
def harbor():
    return "a place for ships"

@pytest.fixture
def clock():
    return "on the wall"

def test_own_fixtures_win(harbor, clock):
    assert (harbor, clock) == ("a place for ships", "on the wall")

def test_ours_still_work_beside_them(taskharbor_stage, drain, harbor):
    work = taskharbor_stage.harbor.task(name="work")(lambda: None)
    work.enqueue()
    assert len(drain()) == 1 and harbor == "a place for ships"
"""

WITHOUT = """
import sys

def test_taskharbor_is_not_imported():
    assert "taskharbor_pytest" in sys.modules
    assert [name for name in sys.modules if name.split(".")[0] == "taskharbor"] == []
"""


def run_suite(folder: Path, settings: str = "", options: Sequence[str] = (), **files: str) -> str:
    """Run pytest over these files in a process of its own; return what it printed."""
    (folder / "pytest.ini").write_text(f"[pytest]\n{settings}")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "."],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def test_the_applications_harbor_is_moved_for_each_test(tmp_path: Path):
    settings = "taskharbor_app = shop:harbor\ntaskharbor_clock = 2026-03-01T09:00:00Z\n"
    # Without the plugins that happen to be installed, which take seconds to import.
    only = ["--disable-plugin-autoload", "-p", "taskharbor_pytest", "-p", "anyio"]
    printed = run_suite(tmp_path, settings, only, shop=SHOP, test_shop=TESTS_OF_SHOP)
    assert "4 passed" in printed


def test_a_suite_keeps_its_own_fixtures_and_does_not_import_what_it_does_not_use(tmp_path: Path):
    run_suite(tmp_path, test_a_without=WITHOUT, test_own=TESTS_WITH_OWN_FIXTURES)
