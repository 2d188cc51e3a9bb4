"""Which users may read the files of a store: one that TaskHarbor makes, only its own."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from taskharbor import Harbor
from taskharbor.drivers.base import Check
from taskharbor.sync import run_inline

pytestmark = pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=lambda mask: f"umask {mask:03o}")
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(file: Path) -> dict[str, int]:
    return {each.name: stat.S_IMODE(each.stat().st_mode) for each in file.parent.iterdir() if each.is_file()}


MAKERS: dict[str, Callable[[Harbor], object]] = {
    "first use": lambda harbor: harbor.enqueue("t"),
    "migrate": lambda harbor: harbor.migrate(),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_new_store_belongs_to_its_user_alone(
    file: Path, umask: int, make: Callable[[Harbor], object]
) -> None:
    with Harbor(f"sqlite:///{file}") as harbor:
        make(harbor)
        harbor.enqueue("t")
        assert modes(file) == dict.fromkeys(["harbor.db", "harbor.db-wal", "harbor.db-shm"], 0o600)
    assert modes(file) == {"harbor.db": 0o600}


def test_where_files_can_only_be_made_by_opening_them_they_are_private_too(
    file: Path, umask: int, monkeypatch: pytest.MonkeyPatch
):
    """macOS lets only root make a file otherwise."""

    def refuse(*_: object) -> None:
        raise PermissionError("only root")

    monkeypatch.setattr(os, "mknod", refuse)
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.enqueue("t")
        assert set(modes(file).values()) == {0o600}


def test_a_link_to_a_file_that_does_not_exist_yet_makes_a_private_one(tmp_path: Path, umask: int):
    link, target = tmp_path / "links" / "harbor.db", tmp_path / "files" / "harbor.db"
    link.parent.mkdir()
    target.parent.mkdir()
    link.symlink_to(target)
    with Harbor(f"sqlite:///{link}") as harbor:
        harbor.enqueue("t")
        assert modes(target) == dict.fromkeys(["harbor.db", "harbor.db-wal", "harbor.db-shm"], 0o600)


@pytest.mark.parametrize("mode", [0o640, 0o664])
def test_a_file_that_exists_keeps_its_permissions(file: Path, umask: int, mode: int):
    """A group may share it on purpose, and so may the application whose database it is."""
    file.touch()
    file.chmod(mode)
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.enqueue("t")
        assert set(modes(file).values()) == {mode}


def test_a_database_of_the_application_keeps_its_permissions(file: Path):
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    file.chmod(0o644)
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.migrate()
        harbor.enqueue("t")
        assert set(modes(file).values()) == {0o644}


# -- doctor --


def permissions(harbor: Harbor) -> Check:
    [found] = [check for check in run_inline(harbor.driver.check()) if check.name == "permissions"]
    return found


def test_doctor_finds_a_new_store_private(harbor: Harbor):
    harbor.enqueue("t")
    assert permissions(harbor) == Check("permissions", True, "only their owner can read the files")


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_doctor_warns_of_a_file_that_others_can_reach_and_says_the_command(
    harbor: Harbor, file: Path, suffix: str, mode: int
):
    harbor.enqueue("t")
    Path(f"{file}{suffix}").chmod(mode)
    check = permissions(harbor)
    assert not check.ok
    assert not check.severe  # a group may share it on purpose
    assert f"{file}{suffix} is {mode:04o}" in check.detail
    assert check.detail.endswith(f"chmod 600 {file}{suffix}")


def test_the_command_that_doctor_says_can_be_copied_whatever_the_name(tmp_path: Path):
    file = tmp_path / "a b; c.db"
    with Harbor(f"sqlite:///{file}") as harbor:
        harbor.enqueue("t")
        file.chmod(0o644)
        assert permissions(harbor).detail.endswith(f"chmod 600 '{file}'")
