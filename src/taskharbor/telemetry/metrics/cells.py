"""Cells: the memory that one process counts in, and that others may read at any time.

It consists of 64-bit words with one writer, the process that counts. A series is a pair of a queue and a task; the
names of a pair are in the same memory, written before the pair is published, so that a reader that never imports the
application can read them, also after the writer's death. At most `PAIRS` pairs have cells of their own. Further ones
share those of the pair `OTHER`, so that neither the memory nor a scrape grows with what producers name their queues.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from taskharbor.telemetry.metrics import catalogue
from taskharbor.telemetry.metrics.catalogue import Source

Pair = tuple[str, str]  # the labels of a queue and a task

PAIRS = 200
OTHER_NAME = "_other"
OTHER: Pair = (OTHER_NAME, OTHER_NAME)
LABEL_BYTES = 120  # of UTF-8; a longer name is cut

WORD = 8
JOB_METRICS = catalogue.of(Source.JOBS)
PROCESS_METRICS = catalogue.of(Source.PROCESS)
JOB_WORDS = catalogue.words(JOB_METRICS)
PROCESS_WORDS = catalogue.words(PROCESS_METRICS)

_LABEL_WORDS = -(-LABEL_BYTES // WORD)
_NAME_WORDS = 2 * (1 + _LABEL_WORDS)  # of a pair: each label with its length before it

# -- the words, in their order --
_PUBLISHED = 0  # how many pairs have names
_PROCESS = 8
_NAMES = _PROCESS + PROCESS_WORDS
_OTHER = _NAMES + PAIRS * _NAME_WORDS
_JOBS = _OTHER + JOB_WORDS
SIZE = (_JOBS + PAIRS * JOB_WORDS) * WORD  # bytes

OTHER_BASE = _OTHER
PROCESS_BASE = _PROCESS


class Cells:
    """The cells of one process, in memory of `SIZE` bytes that is all zeros at first."""

    def __init__(self, memory: memoryview[Any] | None = None) -> None:
        self._bytes = memoryview(bytearray(SIZE)) if memory is None else memory.cast("B")[:SIZE]
        if len(self._bytes) < SIZE:
            raise ValueError(f"cells take {SIZE} bytes, not {len(self._bytes)}")
        self.words: memoryview[int] = self._bytes.cast("q")

    # -- the writer's side --

    def publish(self, pair: Pair) -> int | None:
        """Give a new pair of labels its cells; return where they begin, or None if there is no room."""
        index = self.words[_PUBLISHED]
        if index >= PAIRS:
            return None
        start = _NAMES + index * _NAME_WORDS
        for name in pair:
            text = name.encode()
            self.words[start] = len(text)
            self._bytes[(start + 1) * WORD : (start + 1) * WORD + len(text)] = text
            start += 1 + _LABEL_WORDS
        self.words[_PUBLISHED] = index + 1
        return _JOBS + index * JOB_WORDS

    # -- a reader's side --

    def process(self) -> list[int]:
        """Copy the words of the process."""
        return self.words[_PROCESS:_NAMES].tolist()

    def jobs(self) -> Iterator[tuple[Pair, list[int]]]:
        """Copy the words of each pair, those of `OTHER` if it has counted anything."""
        words = self.words
        for index in range(min(words[_PUBLISHED], PAIRS)):
            base = _JOBS + index * JOB_WORDS
            yield self._pair(index), words[base : base + JOB_WORDS].tolist()
        other = words[_OTHER:_JOBS].tolist()
        if any(other):
            yield OTHER, other

    def _pair(self, index: int) -> Pair:
        start = _NAMES + index * _NAME_WORDS
        return self._label(start), self._label(start + 1 + _LABEL_WORDS)

    def _label(self, start: int) -> str:
        first = (start + 1) * WORD
        size = min(self.words[start], LABEL_BYTES)  # a handler may have written anywhere before it crashed
        return bytes(self._bytes[first : first + size]).decode(errors="replace")

    def close(self) -> None:
        """Let the memory go; its owner may then unmap it."""
        self.words.release()
        self._bytes.release()


def label(name: str) -> str:
    """Return a queue's or task's name as a label: printable, and at most `LABEL_BYTES` of UTF-8."""
    if len(name) <= LABEL_BYTES and name.isascii() and name.isprintable():
        return name
    printable = "".join([each if each.isprintable() else "\ufffd" for each in name[: LABEL_BYTES + 1]])
    text = printable.encode()
    if len(text) <= LABEL_BYTES:
        return printable
    return text[: LABEL_BYTES - len("…".encode())].decode(errors="ignore") + "…"
