"""`taskharbor top`: one frame for a pipe, and a live view on a real terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator

import pytest

from taskharbor.cli.top.frame import Frame, look, rates_between, tables
from taskharbor.records import State
from taskharbor.views.workers import Stats
from tests.cli.conftest import COMMAND

PATIENCE_SECONDS = 60.0


def frame(at: float, **counts: int) -> Frame:
    return Frame(at, 0.0, Stats({state: counts.get(state, 0) for state in State}, [], []), [])


def test_rates_are_what_the_counts_became():
    rates = rates_between(frame(10, ready=100, succeeded=5), frame(12, ready=90, succeeded=25, dead=4))
    assert (rates.enqueued, rates.succeeded, rates.dead) == (7.0, 10.0, 2.0)


def test_pruning_is_no_negative_rate():
    rates = rates_between(frame(10, succeeded=100), frame(12))
    assert (rates.enqueued, rates.succeeded, rates.dead) == (0, 0, 0)


def test_one_frame_in_a_pipe(run, harbor, drain):
    harbor.enqueue("fail", {"message": "no\x1b[31mred"}, max_attempts=1)
    drain()
    harbor.enqueue("echo", queue="mail")
    harbor.queues.pause("mail")
    out = run("top", "--interval", "100ms").out
    assert "\x1b" not in out
    assert re.search(r"ready 1 .*dead 1", out)
    assert "a second: 0.0 enqueued, 0.0 succeeded, 0.0 dead" in out
    assert re.search(r"^mail +yes +1 ", out, re.MULTILINE)
    assert re.search(r"fail +exhausted .*RuntimeError: no\\x1b\[31mred", out)


def test_one_frame_as_json(run, harbor):
    job = harbor.enqueue("nobody")
    document = run("top", "--json", "--interval", "100ms").document
    assert document["counts"]["ready"] == 1
    assert document["rates"] == {"enqueued": 0, "succeeded": 0, "dead": 0}
    assert [queue["name"] for queue in document["queues"]] == ["default"]
    assert document["workers"] == document["failures"] == []
    assert job.refresh().state == "ready"


def test_it_only_reads_and_reads_little(harbor):
    """Thousands of queues and dead jobs are shown by their first rows."""
    harbor.enqueue_many([harbor.tasks["echo"].using(queue=f"q{n}").s(message=n) for n in range(300)])

    async def seen() -> Frame:
        return await look(harbor)

    import asyncio

    found = asyncio.run(seen())
    [queues, *_] = tables(found, 5)
    assert queues.title == "queues (5 of 300)"
    assert len(queues.rows) == 5


def test_bad_words_are_one_clear_line(run):
    assert "'soon' is not a duration" in run("top", "--interval", "soon", code=2).error


class Terminal:
    """A command on a terminal of its own, and the keyboard in front of it."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 120, 0, 0))
        kept = {
            name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
        }
        self.settings = termios.tcgetattr(theirs)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=kept | {"TERM": "xterm-256color"},
            start_new_session=True,
            # So that Ctrl-C is a signal to it; this process has no threads that a fork could harm.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
        )
        self.out = ""

    def until(self, text: str) -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while text not in self.out:
            assert time.monotonic() < give_up_at, self.out
            if select.select([self._ours], [], [], 0.1)[0]:
                self.out += os.read(self._ours, 65536).decode(errors="replace")

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def ended(self) -> int:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:  # a terminal that nobody reads holds it up
            assert time.monotonic() < give_up_at, self.out
            if select.select([self._ours], [], [], 0.05)[0]:
                self.out += os.read(self._ours, 65536).decode(errors="replace")
        return self.process.wait()

    def settings_now(self) -> list[object]:
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(harbor, url) -> Iterator[Terminal]:
    harbor.enqueue("echo", queue="mail")
    terminal = Terminal("top", "--url", url, "--interval", "100ms")
    yield terminal
    terminal.close()


@pytest.mark.parametrize("leave", ["q", "\x03"], ids=["q", "Ctrl-C"])
def test_it_is_live_and_leaves_cleanly(terminal, harbor, leave):
    terminal.until("mail")
    terminal.until("a second:")
    harbor.enqueue("echo", queue="another")
    terminal.until("another")  # without being asked to look again
    terminal.press(leave)
    assert terminal.ended() == 0
    assert "Traceback" not in terminal.out
    assert "Error" not in terminal.out
    assert (
        terminal.out.count("\x1b[?1049h") == terminal.out.count("\x1b[?1049l") == 1
    )  # the screen is as before
    assert terminal.settings_now() == terminal.settings


def test_a_termination_leaves_the_terminal_as_it_was(terminal):
    terminal.until("mail")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.ended() == 0
    assert terminal.settings_now() == terminal.settings


def test_running_jobs_are_shown_with_their_durations(started, harbor, url):
    started("worker", "--url", url, "--lease-seconds", "1")
    job = harbor.enqueue("sleep", {"seconds": 600}, timeout=1_000)
    give_up_at = time.monotonic() + PATIENCE_SECONDS
    while True:
        assert time.monotonic() < give_up_at
        words = [*COMMAND, "top", "--json", "--interval", "100ms", "--url", url]
        document = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
        running = [job for worker in document["workers"] for job in worker["running"]]
        if running:
            break
    assert [(each["id"], each["task"], each["overdueSeconds"]) for each in running] == [
        (job.id, "sleep", None)
    ]
    assert running[0]["seconds"] > 0
