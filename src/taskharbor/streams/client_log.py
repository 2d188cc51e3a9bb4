"""What the C library inside the Kafka client says by itself. It goes to the log `taskharbor.stream.client`."""

from __future__ import annotations

import logging

logger = logging.getLogger("taskharbor.stream.client")

# What it says about connections, as errors. They are none: it connects again by itself.
_CONNECTIONS = frozenset({"FAIL", "ERROR"})


class ClientLog:
    """Takes the log of one client, which calls `log`.

    As long as the client has met no broker, the error of its user says what is wrong. What it says itself about its
    connections is only for those who look for the cause then.
    """

    def __init__(self, *, has_met: bool) -> None:
        self.has_met = has_met  # whether brokers at its address have answered
        self.trouble = ""  # why the last connection failed

    def log(self, level: int, text: str, *arguments: object) -> None:
        what = str(arguments[0]) if arguments else ""
        if what in _CONNECTIONS:
            level = logging.WARNING if self.has_met else logging.DEBUG
        if what == "FAIL":
            # Before the reason stand the thread and the broker, as `[thrd:host:9092/bootstrap]: host:9092/bootstrap: `.
            self.trouble = str(arguments[-1]).partition("]: ")[2].partition(": ")[2]
        logger.log(level, text, *arguments)

    def because(self) -> str:
        """Return why the last connection failed, to be put behind an error."""
        return f" ({self.trouble})" if self.trouble else ""


MET = ClientLog(has_met=True)  # of clients that are made after the brokers have answered
