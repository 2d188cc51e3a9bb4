"""How a handler's process behaves: like its worker's, and so that it may be killed at any time."""

from __future__ import annotations

import logging
import os
import signal
import sys

from taskharbor.worker.handlers.isolation.link import Link, LogsToWorker
from taskharbor.worker.handlers.isolation.messages import Init


def be_like_the_worker(welcome: Init) -> None:
    sys.argv[1:] = welcome.arguments
    for name, level in welcome.levels.items():
        logging.getLogger(name or None).setLevel(level)


def only_our_handler_on_the_root(link: Link) -> None:
    """What importing has installed there is installed in the worker as well: lines would come out twice."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, LogsToWorker)]
    root.handlers[:] = ours or [LogsToWorker(link)]


def leave_signals_to_the_worker() -> None:
    """A service manager or a terminal signals the whole tree; how handlers end then is for the worker to say.

    Not ignored, because what a handler starts would inherit that.
    """
    signals = (signal.SIGTERM, signal.SIGINT)

    def undo() -> None:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)

    for number in signals:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=undo)


def print_by_lines() -> None:
    """A process that may be killed at any time keeps nothing back."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
