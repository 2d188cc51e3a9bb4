"""What the C library inside the Kafka client says by itself. It goes to the log `taskharbor.stream.client`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

logger = logging.getLogger("taskharbor.stream.client")

# What it says about connections, as errors. They are none: it connects again by itself.
_CONNECTIONS = frozenset({"FAIL", "ERROR"})
_OTHERS_SETTING = "property and will be ignored by this"  # a worker's settings go to all its clients
AGAIN_SECONDS = 30.0  # from one warning of a lost connection to the next
BROKERS_MAX = 100  # of which it remembers when it warned


class ClientLog:
    """Takes the log of one client, which calls `log`.

    As long as the client has met no broker, the error of its user says what is wrong. What it says itself about its
    connections is only for those who look for the cause then. Later it is a warning, now and then: the client tries
    again every second or two. Its other errors are warnings too, because it repeats what failed, or its user says what
    became of it. Only a fatal one is an error.
    """

    def __init__(self, *, has_met: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.has_met = has_met  # whether brokers at its address have answered
        self.trouble = ""  # why the last connection failed
        self._monotonic = monotonic
        self._warned: dict[str, float] = {}  # when it warned of which connection

    def log(self, level: int, text: str, *arguments: object) -> None:
        what = str(arguments[0]) if arguments else ""
        said = str(arguments[-1]) if arguments else ""
        if what in _CONNECTIONS:
            level = logging.WARNING if self.has_met and self._is_to_warn(what, said) else logging.DEBUG
        elif what == "CONFWARN" and _OTHERS_SETTING in said:
            level = logging.DEBUG
        elif what != "FATAL":
            level = min(level, logging.WARNING)
        if what == "FAIL":
            # Before the reason stand the thread and the broker, as `[thrd:host:9092/bootstrap]: host:9092/bootstrap: `.
            self.trouble = said.partition("]: ")[2].partition(": ")[2]
        logger.log(level, text, *arguments)

    def _is_to_warn(self, what: str, said: str) -> bool:
        """Whether the last warning of this connection is long ago."""
        now, connection = self._monotonic(), f"{what} {said.partition(']: ')[0]}"
        if now - self._warned.get(connection, -AGAIN_SECONDS) < AGAIN_SECONDS:
            return False
        if len(self._warned) >= BROKERS_MAX:
            self._warned.clear()
        self._warned[connection] = now
        return True

    def because(self) -> str:
        """Return why the last connection failed, to be put behind an error."""
        return f" ({self.trouble})" if self.trouble else ""


MET = ClientLog(has_met=True)  # of clients that are made after the brokers have answered
