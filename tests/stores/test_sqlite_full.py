"""A full disk: the error reaches the caller, what was accepted is there, the file is whole."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from taskharbor import Harbor, StoreUnavailable

MEGABYTE = 2**20


def _mounted(folder: Path) -> bool:
    """A real filesystem of two megabytes; only root may, and not in every container."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True, check=False, timeout=30).returncode == 0


class Disk:
    """A folder with room for little."""

    def __init__(self, folder: Path) -> None:
        self.is_real = _mounted(folder)
        self._ballast = folder / "ballast"
        if self.is_real:
            self._ballast.write_bytes(bytes(MEGABYTE // 2))

    def bound(self, harbor: Harbor, megabytes: float = 1.0) -> None:
        """Where no small filesystem can be had, the limit is one of SQLite's own, with the same error."""
        if not self.is_real:
            harbor.jobs.counts()
            engine: Any = harbor.driver._engine  # type: ignore[attr-defined]
            engine._writer.execute(f"PRAGMA max_page_count = {int(megabytes * MEGABYTE) // 4096}")

    def make_room(self, harbor: Harbor) -> None:
        self._ballast.unlink(missing_ok=True)
        self.bound(harbor, megabytes=2)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    folder = tmp_path / "disk"
    folder.mkdir()
    disk = Disk(folder)
    yield disk
    if disk.is_real:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "harbor.db"


def ids(harbor: Harbor) -> set[str]:
    found: set[str] = set()
    cursor = None
    while True:
        page = harbor.jobs.list(limit=1000, cursor=cursor)
        found |= {job.id for job in page}
        cursor = page.next_cursor
        if cursor is None:
            return found


def assert_whole(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_what_was_accepted_before_the_disk_was_full_is_there_afterwards(disk: Disk, file: Path):
    accepted: set[str] = set()
    with Harbor(f"sqlite:///{file}") as harbor:
        disk.bound(harbor)
        with pytest.raises(StoreUnavailable, match="full") as caught:
            for _ in range(100_000):
                accepted.add(harbor.enqueue("t", {"x": "y" * 2000}).id)
        assert len(accepted) > 20
        assert len(caught.value.job_ids) == 1
        assert ids(harbor) == accepted  # reading goes on
        assert harbor.jobs.counts()["ready"] == len(accepted)
        with pytest.raises(StoreUnavailable, match="full"):
            harbor.enqueue("t", {"x": "y" * 100_000})
    assert_whole(file)
    with Harbor(f"sqlite:///{file}") as again:
        assert ids(again) == accepted


def test_many_are_all_or_nothing_on_a_full_disk(disk: Disk, file: Path):
    with Harbor(f"sqlite:///{file}") as harbor:
        disk.bound(harbor)
        task = harbor.task(name="t")(lambda x: None)
        [first] = task.enqueue_many([{"x": 1}])
        with pytest.raises(StoreUnavailable, match="full") as caught:
            task.enqueue_many([{"x": "y" * 2000}] * 2000)
        assert len(caught.value.job_ids) == 2000
        assert ids(harbor) == {first.id}
    assert_whole(file)


def test_threads_and_tasks_that_share_a_commit_each_learn_their_own_fate(disk: Disk, file: Path):
    accepted: list[str] = []
    refused: list[StoreUnavailable] = []

    def fill() -> None:
        for _ in range(200):
            try:
                accepted.append(harbor.enqueue("t", {"x": "y" * 4000}).id)
            except StoreUnavailable as error:
                refused.append(error)

    async def fill_async() -> None:
        enqueues = [harbor.aenqueue("t", {"x": "y" * 4000}) for _ in range(200)]
        for outcome in await asyncio.gather(*enqueues, return_exceptions=True):
            if isinstance(outcome, BaseException):
                assert isinstance(outcome, StoreUnavailable), outcome
                refused.append(outcome)
            else:
                accepted.append(outcome.id)

    with Harbor(f"sqlite:///{file}?synchronous=normal") as harbor:
        disk.bound(harbor)
        threads = [threading.Thread(target=fill) for _ in range(3)]
        threads.append(threading.Thread(target=lambda: asyncio.run(fill_async())))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(accepted) + len(refused) == 800
        assert accepted
        assert refused
        assert ids(harbor) == set(accepted)
    assert_whole(file)


def test_once_there_is_room_again_the_same_harbor_goes_on(disk: Disk, file: Path):
    with Harbor(f"sqlite:///{file}") as harbor:
        disk.bound(harbor)
        with pytest.raises(StoreUnavailable) as caught:
            for _ in range(100_000):
                harbor.enqueue("t", {"x": "y" * 2000})
        accepted = harbor.jobs.counts()["ready"]
        disk.make_room(harbor)
        # The error carries the id, so that the enqueue can be repeated without making two.
        [refused] = caught.value.job_ids
        again = harbor.enqueue("t", {"x": "y" * 2000}, id=refused)
        assert not again.existed
        assert harbor.jobs.counts()["ready"] == accepted + 1
    assert_whole(file)
