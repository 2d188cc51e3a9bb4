"""Enqueueing inside the caller's own transaction: on its connection, in its thread and loop, committed by it.

Each library that a connection may come from has one small module here. None of them is a dependency: whoever
hands us a connection has imported its library.
"""

from taskharbor.drivers.postgres.callers.recognising import caller_of
from taskharbor.drivers.postgres.callers.session import CallersSession

__all__ = ["CallersSession", "caller_of"]
