"""What a test run starts ends with the run, however that ends: also by kill -9.

Each pytest process starts a guard: a small process in a session of its own that waits for pytest to be gone. Then it
kills whatever the run has left, and removes the run's folder. No test has to register anything:

- A variable in the environment marks everything that the run executes, however deep and in whatever session. The mark
  of a run inside a run begins with the outer one, as that of an xdist worker begins with its controller's.
- A forked process executes nothing, and the system shows its environment as pytest's own was at the start. So it tells
  the guard its number.
- Temporary files of all of them go into the run's folder. (But for those of `tmp_path`, which pytest keeps for a look.)

Finding processes by their environment takes /proc; elsewhere the guard ends the forked ones and what they started.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MARK = "TEST_RUN_OF_TASKHARBOR"  # not TASKHARBOR_…: some tests start processes without any setting of ours
FOLDER_PREFIX = "taskharbor-test-"
BY_ITSELF_SECONDS = 1.0  # what ends by itself is left in peace: an xdist worker stops its server …
SERVER_SECONDS = 3.0  # … and a PostgreSQL server, told to stop, removes its shared memory
QUIET_SECONDS = 0.5  # nothing was found for so long: nothing is left
GIVE_UP_SECONDS = 120.0
PAUSE_SECONDS = 0.05
LOOK_SECONDS = 0.5  # between two looks whether pytest is there, where the system cannot tell

_PROCESSES = Path("/proc")


# -- in pytest -----------------------------------------------------------------------------------


def start() -> None:
    """Start a guard for this process, and mark everything that this process starts from now on."""
    if os.name != "posix":
        return
    mark = ".".join(filter(None, [os.environ.get(MARK), os.urandom(6).hex()]))
    outside = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
    os.chmod(folder, 0o711)  # a PostgreSQL server, which never runs as root, has to go through
    _tell_of_forks(_spawn(mark, folder))
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", outside)  # where pytest keeps what `tmp_path` gives
    os.environ[MARK] = mark
    os.environ["TMPDIR"] = folder
    tempfile.tempdir = None  # read $TMPDIR again


def folder_of_the_run() -> Path:
    """The folder that all test processes of a run share; it goes when the run has ended."""
    folder = Path(os.environ["TMPDIR"])
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


def environment_of_the_run() -> dict[str, str]:
    """Marks a process as one of the run's own, and not of the test process that starts it."""
    mark = os.environ[MARK]
    if "PYTEST_XDIST_WORKER" in os.environ:
        mark = mark.rpartition(".")[0]
    return {MARK: mark, "TMPDIR": str(folder_of_the_run())}


def _spawn(mark: str, folder: str) -> int:
    """Start the guard; the descriptor over which it learns of forked processes."""
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark, folder],
        os.environ,
        # A program that reads what pytest prints must not have to wait for the guard.
        file_actions=[
            (os.POSIX_SPAWN_DUP2, theirs, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,
    )
    os.close(theirs)
    return ours


def _tell_of_forks(guard: int) -> None:
    def tell() -> None:
        with suppress(OSError):
            os.write(guard, f"{os.getpid()}\n".encode())

    os.register_at_fork(after_in_child=tell)


# -- in the guard --------------------------------------------------------------------------------


class Process(NamedTuple):
    pid: int
    name: str
    parent: int  # another one, once its parent is gone
    started: int  # in ticks since the machine was

    @property
    def identity(self) -> tuple[int, int]:
        """A number alone may be given to another process later."""
        return (self.pid, self.started)


def main() -> None:
    parent, mark, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    forked = wait_for_the_end_of(parent)
    sweep(mark, forked)
    shutil.rmtree(folder, ignore_errors=True)


def wait_for_the_end_of(parent: int) -> set[tuple[int, int]]:
    """Wait until pytest is gone; the identities of processes that it forked meanwhile."""
    forked: set[tuple[int, int]] = set()
    ended = _end_of(parent)
    listening, unread = True, b""
    while os.getppid() == parent:
        sources = [0, *ended] if listening else ended
        readable, _, _ = select.select(sources, [], [], None if ended else LOOK_SECONDS)
        if 0 in readable:
            told = os.read(0, 65536)
            listening = bool(told)
            *lines, unread = (unread + told).split(b"\n")
            forked |= {found.identity for line in lines if (found := process(int(line))) is not None}
        if any(each in readable for each in ended):
            break
    return forked


def _end_of(pid: int) -> list[int]:
    """A descriptor that becomes readable when the process ends, where the system has one."""
    try:
        return [os.pidfd_open(pid)]
    except (AttributeError, OSError):
        return []


def sweep(mark: str, forked: Set[tuple[int, int]]) -> None:
    """Kill whatever is left of the run, until nothing is."""
    began = last_found = time.monotonic()
    while (now := time.monotonic()) < began + GIVE_UP_SECONDS and now < last_found + QUIET_SECONDS:
        for pid, is_server in left_of(mark, forked).items():
            last_found = now
            if now < began + BY_ITSELF_SECONDS:
                continue
            is_patient = is_server and now < began + SERVER_SECONDS
            _signal(pid, signal.SIGQUIT if is_patient else signal.SIGKILL)
        time.sleep(PAUSE_SECONDS)


def left_of(mark: str, forked: Set[tuple[int, int]] = frozenset()) -> dict[int, bool]:
    """What a run has left, by number: all that is marked or was forked, and their descendants; which are servers."""
    there = {each.pid: each for each in processes()}
    found = {pid for pid, each in there.items() if is_marked(pid, mark) or each.identity in forked}
    while more := {pid for pid, each in there.items() if each.parent in found} - found:
        found |= more
    found.discard(os.getpid())
    return {pid: there[pid].name == "postgres" for pid in found}


def processes() -> Iterator[Process]:
    for entry in _PROCESSES.glob("[0-9]*"):
        if (found := process(int(entry.name))) is not None:
            yield found


def process(pid: int) -> Process | None:
    """The process with this number, unless it is gone; a zombie is."""
    try:
        text = (_PROCESSES / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # pid (name) state parent …, and a name may hold anything
    before, _, after = text.rpartition(")")
    fields = after.split()
    return (
        None if fields[0] in "ZX" else Process(pid, before.partition("(")[2], int(fields[1]), int(fields[19]))
    )


def is_marked(pid: int, mark: str) -> bool:
    """Whether it was started by this run, or by a run inside it."""
    try:
        environment = (_PROCESSES / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    begins = f"{MARK}={mark}".encode()
    return any(each == begins or each.startswith(begins + b".") for each in environment)


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


if __name__ == "__main__":
    main()
