"""The database's files: which there are, and which users may read them.

A payload may hold anything, personal data and secrets included, so that a file TaskHarbor makes belongs to its
user alone. SQLite gives the write-ahead log and the shared memory the permissions of the database.
"""

from __future__ import annotations

import os
import shlex
import stat

from taskharbor.drivers.base import Check

PRIVATE = 0o600  # its user reads and writes; no other user does either
OTHERS = 0o077
SUFFIXES = ("", "-wal", "-shm")


def create_private(path: str) -> None:
    """Make an empty file, readable by its user alone, where there is none yet; leave one that exists as it is.

    Any obstacle is reported by SQLite, which opens the file next.
    """
    real = os.path.realpath(path)  # SQLite follows a link to a file that does not exist yet, too
    try:
        # It makes the file without opening it. A descriptor would be a danger: when a process closes one, it loses
        # the locks that any other thread holds on the same file.
        os.mknod(real, PRIVATE | stat.S_IFREG)
    except FileExistsError:
        pass
    except (
        OSError,
        AttributeError,
    ):  # only root may do this (macOS), or the system has no such call (Windows)
        try:
            os.close(os.open(real, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        except OSError:
            pass


def permissions_check(path: str) -> Check:
    """Warn where users other than the owner may read or write one of the files."""
    if os.name != "posix":
        return Check("permissions", True, "left to the folder's own, as everywhere on this system")
    real = os.path.realpath(path)
    modes = {file: mode for suffix in SUFFIXES if (mode := _mode(file := real + suffix)) is not None}
    open_to_others = [file for file, mode in modes.items() if mode & OTHERS]
    if not open_to_others:
        return Check("permissions", True, "only their owner can read the files")
    shown = ", ".join(f"{file} is {modes[file]:04o}" for file in open_to_others)
    return Check(
        "permissions",
        False,
        f"users other than the owner can reach the jobs ({shown}); "
        f"unless that is meant: chmod 600 {shlex.join(open_to_others)}",
        severe=False,
    )


def _mode(file: str) -> int | None:
    try:
        return stat.S_IMODE(os.stat(file).st_mode)
    except OSError:
        return None
