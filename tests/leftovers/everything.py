"""A run inside a run: it starts one of everything that tests start, and cleans nothing up.

Its name keeps it out of the suite: `test_leftovers.py` runs it, and says how it ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from taskharbor import Harbor
from tests import guard
from tests.faults.processes import wait_until
from tests.postgres import store
from tests.supervisor.conftest import Shop
from tests.worker import isolated
from tests.worker.apart import apart, begun
from tests.worker.stage import working

ENDS = os.environ["HOW_IT_ENDS"]
NOTES = Path(os.environ["NOTES"])  # a file for each kind of process, with its number, and `folder` of the run

pytestmark = pytest.mark.timeout(600)


def note(kind: str, text: object) -> None:
    (NOTES / f"{kind}.part").write_text(str(text))
    (NOTES / f"{kind}.part").rename(NOTES / kind)


async def test_start_one_of_everything(tmp_path: Path) -> None:
    _fork()
    _start_detached()
    await asyncio.to_thread(_start_supervisor, tmp_path)
    server = store.server()
    [postmaster, *_] = (server.folder / "data" / "postmaster.pid").read_text().splitlines()
    note("server", postmaster)
    async with Harbor("memory://") as harbor:
        await apart(harbor, isolated.with_grandchild).aenqueue(str(tmp_path / "begun"))
        async with working(harbor):
            note("grandchild", await begun(tmp_path / "begun"))
            note("folder", server.folder.parent)
            note("mark", os.environ[guard.MARK])
            note("ready", os.getpid())
            while not (NOTES / "seen").exists():  # noqa: ASYNC110 - another process makes it
                await asyncio.sleep(0.01)
            if ENDS == "killed":
                await asyncio.sleep(600)
            if ENDS == "interrupted":
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(600)
            raise AssertionError("a test that fails in the middle")


def _fork() -> None:
    """In the same session, and with an environment that shows no mark."""
    child = os.fork()
    if not child:
        while True:
            time.sleep(600)
    note("forked", child)


def _start_detached() -> None:
    """A process that leaves one behind, in a session of its own."""
    script = (
        "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True,"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    note("detached", int(done.stdout))


def _start_supervisor(folder: Path) -> None:
    shop = Shop(folder, f"sqlite:///{folder}/harbor.db")
    note("supervisor", shop.start(processes=1).pid)
    [child] = wait_until(lambda: shop.lines("workers"), 120, "the supervised worker")
    note("supervised", child)
