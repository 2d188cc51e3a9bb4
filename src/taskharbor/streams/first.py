"""Messages that are handed over without being executed here: of `at_most_once` tasks, and those that cannot be read.

The bytes of an unreadable message go to the dead-letter topic before the message leaves the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from msgspec import Struct

from taskharbor.drivers.contract.handing_over import HandedOver
from taskharbor.streams.client_errors import is_refused
from taskharbor.streams.jobs import Held
from taskharbor.streams.messages import Place, Unreadable
from taskharbor.telemetry.logs import log_line

logger = logging.getLogger("taskharbor.stream")

AT_ONCE = 500

Send = Callable[[Place, Unreadable, Any], Awaitable[None]]


class First(Struct, eq=False):
    """A message that is handed over without being executed here."""

    place: Place
    handed: HandedOver
    size: int
    read: Unreadable | None = None  # if it cannot be read, and its bytes are not copied yet
    message: Any = None
    held: Held | None = None  # if messages behind it wait


class FirstMessages:
    """Those that wait for the store. The order in which they came is kept."""

    def __init__(self) -> None:
        self._waiting: list[First] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, first: First) -> None:
        self._waiting.append(first)
        self.bytes += first.size

    def next(self) -> list[First]:
        """Those to hand over next: last those whose bytes have to be copied, since they wait for the brokers."""
        return sorted(self._waiting, key=lambda each: each.read is not None)[:AT_ONCE]

    def remove(self, done: Sequence[First]) -> None:
        ids = set(map(id, done))
        self._keep([each for each in self._waiting if id(each) not in ids])

    def drop(self, partitions: Collection[int]) -> None:
        """Forget those of partitions that go away."""
        self._keep([each for each in self._waiting if each.place.partition not in partitions])

    def _keep(self, kept: list[First]) -> None:
        self._waiting = kept
        self.bytes = sum(each.size for each in kept)


async def copied(waiting: Sequence[First], send: Send | None) -> list[First]:
    """Copy the bytes of those that cannot be read; return what can go to the store. The others are tried again."""
    if send is None:
        return list(waiting)
    unsent = [each for each in waiting if each.read is not None]
    sent = [send(each.place, each.read, each.message) for each in unsent if each.read is not None]
    answers = await asyncio.gather(*sent, return_exceptions=True)
    for each, error in zip(unsent, answers, strict=True):
        if error is None or is_refused(error):
            each.read = None
        if error is not None:
            _complain(each.place, error)
    return [each for each in waiting if each.read is None]


def _complain(place: Place, error: BaseException) -> None:
    instead = "its dead job has only its beginning" if is_refused(error) else "it is tried again"
    log_line(
        logger,
        logging.ERROR,
        "the copy of {message} could not be sent, and {instead}: {error}",
        {"message": str(place), "instead": instead, "error": str(error) or repr(error)},
    )
