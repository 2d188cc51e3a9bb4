"""Callers' transactions: an enqueue runs on the connection of the application, and that connection commits it.

Each library that a connection may come from has one small module here, for every store that it can reach. None of the
libraries is a dependency: an application that hands over a connection has imported its library.
"""

from taskharbor.drivers.callers.caller import PostgresCaller, SQLiteCaller, SQLiteConnection
from taskharbor.drivers.callers.recognition import caller_of

__all__ = ["PostgresCaller", "SQLiteCaller", "SQLiteConnection", "caller_of"]
