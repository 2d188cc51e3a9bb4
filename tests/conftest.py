from __future__ import annotations

import signal

from tests import guard


def pytest_configure() -> None:
    # A shell starts what runs in the background with SIGINT ignored, and processes inherit that: those that a test
    # interrupts would not notice.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    guard.start()
