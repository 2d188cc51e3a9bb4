"""SQLite: the embedded default."""

from taskharbor.drivers.sqlite.driver import SQLiteDriver

__all__ = ["SQLiteDriver"]
