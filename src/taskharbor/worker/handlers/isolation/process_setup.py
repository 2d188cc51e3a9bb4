"""Set up a handler process like its worker, and so that it can be killed at any time."""

from __future__ import annotations

import logging
import os
import signal
import sys

from taskharbor.worker.handlers.isolation.link import Link, LogsToWorker
from taskharbor.worker.handlers.isolation.messages import Init


def configure_like_worker(init: Init) -> None:
    sys.argv[1:] = init.arguments
    for name, level in init.levels.items():
        logging.getLogger(name or None).setLevel(level)


def use_only_our_log_handler(link: Link) -> None:
    """Remove the root handlers that imports installed: the worker has them too and would log each line twice."""
    root = logging.getLogger()
    ours = [handler for handler in root.handlers if isinstance(handler, LogsToWorker)]
    root.handlers[:] = ours or [LogsToWorker(link)]


def ignore_stop_signals() -> None:
    """Do nothing on SIGTERM and SIGINT, which service managers and terminals send to all: the worker decides.

    A function instead of SIG_IGN, because programs that a handler starts would inherit SIG_IGN.
    """
    signals = (signal.SIGTERM, signal.SIGINT)

    def undo() -> None:
        for number in signals:
            signal.signal(number, signal.SIG_DFL)

    for number in signals:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=undo)


def line_buffer_output() -> None:
    """Write output line by line: a kill would lose what is in a buffer."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
