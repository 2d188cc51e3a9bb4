"""Processes that read one topic and are killed, what their handlers noted, and what that proves.

One file has everything in the order in which it happened: the begin and the end of each execution, the kills and a
restart of the broker. What the brokers had committed is noted again and again, above all after each kill: it says to
the message what may come again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from taskharbor.streams.offsets import decode
from tests.streams.log import Log
from tools.kafka_server import Broker, OwnBroker

MEMBER = Path(__file__).parent / "member.py"
MESSAGES = int(os.environ.get("TASKHARBOR_FAULT_MESSAGES", "3000"))
KILLS = int(os.environ.get("TASKHARBOR_FAULT_STREAM_KILLS", "4"))
MEMBERS = int(os.environ.get("TASKHARBOR_FAULT_STREAM_MEMBERS", "2"))
PARTITIONS = int(os.environ.get("TASKHARBOR_FAULT_STREAM_PARTITIONS", "2"))
BROKER_RESTARTS = int(os.environ.get("TASKHARBOR_FAULT_STREAM_BROKER_RESTARTS", "0"))
KEYS = 21  # with no common factor with what fails and what is poisonous
PATIENCE_SECONDS = 240.0 + MESSAGES / 50
NOTE_SECONDS = 1.0  # between two notes of what is committed, while the test waits
REPEATED_MAX = 400  # of one kill: what is in flight, and what ends between two commits on a busy machine


def is_poisonous(n: int) -> bool:
    return n % 100 == 99


def fails_once(n: int) -> bool:
    return n % 20 == 7


class Event(NamedTuple):
    """A line of the file."""

    at: str  # begin, end, failed, kill, lost or restart
    n: int = -1
    pid: int = 0
    retry: int = 0


class Committed(NamedTuple):
    """What the group had committed at some line of the file, as messages."""

    line: int
    finished: frozenset[int]
    stored: frozenset[int]  # what stood in the store then


class Crew:
    """Processes that read one topic. `how` is an order, with retries in the store, or `topics`."""

    def __init__(self, folder: Path, log: Log, broker: Broker, url: str, how: str) -> None:
        self.log = log
        self.how = how
        self.file = folder / "executions"
        self.errors = folder / "stderr"
        self._broker = broker
        self._command = [str(MEMBER), url, log.bootstrap, log.topic, log.group, how]
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._read = 0  # bytes of the file
        self.events: list[Event] = []
        self.ended: set[int] = set()
        self._begun: set[int] = set()
        self.commits: list[Committed] = []
        self.stored: Callable[[], frozenset[int]] = frozenset  # messages that stand in a store
        self.give_up_at = time.monotonic() + PATIENCE_SECONDS
        self._next_note = 0.0
        # Where each message stands: keys are always in the same partition.
        self._places: list[list[int]] = [[] for _ in range(log.partitions)]
        for n in range(MESSAGES):
            self._places[n % KEYS % log.partitions].append(n)

    def start(self, name: str = "") -> None:
        with self.errors.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *self._command, str(self.file), name], stdout=errors, stderr=errors
            )
        self._running.append((name, process))

    def run(self, names: Sequence[str], chance: random.Random) -> None:
        """Publish the messages, in slices: one before each kill and one after the last, so that each kill finds
        messages to interrupt."""
        for name in names:
            self.start(name)
        cuts = [MESSAGES * n // (KILLS + 1) for n in range(KILLS + 2)]
        for number in range(KILLS):
            each = range(cuts[number], cuts[number + 1])
            self.log.put_keyed("note", each, KEYS)
            self.wait_until(lambda each=each: not self.ended.isdisjoint(each), 0.02)  # type: ignore[misc] # as lambdas are
            self.note_committed()
            if BROKER_RESTARTS and number == KILLS // 2:
                self.restart_broker()
            self.start(self.kill_one(chance))
        self.log.put_keyed("note", range(cuts[-2], cuts[-1]), KEYS)

    def kill_one(self, chance: random.Random) -> str:
        name, process = self._running.pop(chance.randrange(len(self._running)))
        process.kill()
        process.wait()
        self._tell(at="kill", pid=process.pid)
        self.note_committed()  # of what the dead one has executed, exactly the rest comes again
        return name

    def restart_broker(self) -> None:
        """Kill the broker and start it again, with its data."""
        assert isinstance(self._broker, OwnBroker), "the broker is one that a test may stop"
        self._broker.stop(signal.SIGKILL)
        self._tell(at="restart")
        self._broker.start()
        self._tell(at="restart")  # what ran meanwhile could not be committed either

    def note_committed(self) -> None:
        """Note what the group has committed, and check that it is not ahead of the work."""
        finished: set[int] = set()
        for each in self.log.committed():
            if each.offset >= 0:
                covered = {*range(each.offset), *decode(each.offset, each.metadata)}
                finished |= {self.message_at(each.partition, offset) for offset in covered}
        stored = self.stored()
        self.look()
        self.commits.append(Committed(len(self.events), frozenset(finished), stored))
        not_done = {n for n in finished - self.ended - stored if not self._has_moved(n)}
        assert not not_done, f"the commit covers what is not done: {sorted(not_done)[:10]}"

    def message_at(self, partition: int, offset: int) -> int:
        return self._places[partition][offset]

    def _has_moved(self, n: int) -> bool:
        """Whether a message went to another topic: the end of the test shows what became of it."""
        return self.how == "topics" and n in self._begun and (fails_once(n) or is_poisonous(n))

    def _tell(self, **what: object) -> None:
        with self.file.open("ab") as file:
            file.write((json.dumps(what) + "\n").encode())

    def look(self) -> None:
        """Read what has come to the file."""
        if not self.file.exists():
            return
        with self.file.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            event = Event(**json.loads(line))
            self.events.append(event)
            if event.at == "end":
                self.ended.add(event.n)
            elif event.at == "begin":
                self._begun.add(event.n)

    def wait_until(self, condition: Callable[[], bool], pause: float = 0.2) -> None:
        while True:
            self.look()
            if condition():
                return
            assert time.monotonic() < self.give_up_at, self._told()
            if time.monotonic() >= self._next_note:
                self._next_note = time.monotonic() + NOTE_SECONDS
                self.note_committed()
            time.sleep(pause)

    def _told(self) -> str:
        missing = [n for n in range(MESSAGES) if not is_poisonous(n) and n not in self.ended]
        return f"{len(missing)} are missing: {missing[:10]}\n{self.errors.read_text()[-3_000:]}"

    def close(self) -> None:
        for _, process in self._running:
            process.kill()
            process.wait()

    # -- what it proves --

    def check_repeats(self) -> None:
        """Repeated are only messages that were in flight at a kill, or ended since the last commit before it."""
        last: dict[tuple[int, int], tuple[int, int]] = {}  # the line and the process of each execution
        unexplained = []
        for line, event in enumerate(self.events):
            if event.at != "begin":
                continue
            earlier = last.get((event.n, event.retry))
            if earlier is not None and not self._was_interrupted(*earlier, before=line):
                unexplained.append(event)
            last[event.n, event.retry] = line, event.pid
        assert not unexplained, f"repeated without a kill: {unexplained[:10]}"
        repeated = sum(count - 1 for count in Counter(e.n for e in self.events if e.at == "end").values())
        losses = sum(event.at == "lost" for _, event in self._interruptions)
        assert repeated <= (KILLS + BROKER_RESTARTS + losses) * REPEATED_MAX, repeated
        self._check_committed()

    def _check_committed(self) -> None:
        """What had ended when it was committed never runs again. (Jobs of the store have their own rules.)"""
        begins: dict[int, int] = {}  # the last one of each message
        firsts: dict[int, int] = {}  # the last one of each message's first attempt
        ends: dict[int, int] = {}  # the first one
        for line, event in enumerate(self.events):
            if event.at == "begin":
                begins[event.n] = line
                if event.retry == 0:
                    firsts[event.n] = line
            elif event.at == "end":
                ends.setdefault(event.n, line)
        for line, finished, stored in self.commits:
            if (
                self.how == "topics"
            ):  # a message that has failed is in another topic: its first attempt is over, too
                again = [n for n in finished if firsts[n] >= line]
            else:
                again = [n for n in finished - stored if ends.get(n, line) < line <= begins[n]]
            assert not again, f"committed, and yet executed again: {again[:10]}"

    def _was_interrupted(self, line: int, pid: int, *, before: int) -> bool:
        """Whether the process of an execution was killed, or lost its partitions, between two lines."""
        return any(
            line < at < before and (event.pid == pid or event.at == "restart")
            for at, event in self._interruptions
        )

    @cached_property
    def _interruptions(self) -> list[tuple[int, Event]]:
        """All of them: it is asked for when everything has happened."""
        return [(at, each) for at, each in enumerate(self.events) if each.at in ("kill", "lost", "restart")]

    def check_order(self, lines: int) -> None:
        """Messages of a line run in their order. An earlier one comes again only if its own execution was cut off: what
        runs behind it may be a job of the store meanwhile, in another process."""
        latest: dict[int, int] = {}  # by line: the message that began last
        executed: dict[int, tuple[int, int]] = {}  # by message: its last begin in the file, and its process
        over: set[int] = set()
        before = _predecessors(lines)
        wrong = []
        for at, event in enumerate(self.events):
            n = event.n
            if event.at == "begin":
                line = n % KEYS % lines
                if before[n] is not None and before[n] not in over:
                    wrong.append((before[n], n))
                if n < latest.get(line, n) and not (
                    n in executed and self._was_interrupted(*executed[n], before=at)
                ):
                    wrong.append((latest[line], n))
                latest[line], executed[n] = n, (at, event.pid)
            if event.at == "end" or (event.at == "failed" and is_poisonous(n)):
                over.add(n)
        assert not wrong, f"these overtook each other: {wrong[:10]}"


def _predecessors(lines: int) -> dict[int, int | None]:
    """The message before each one in its line."""
    last: dict[int, int] = {}
    before = {}
    for n in range(MESSAGES):
        before[n] = last.get(n % KEYS % lines)
        last[n % KEYS % lines] = n
    return before
