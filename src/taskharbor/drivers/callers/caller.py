"""What a driver asks of a connection that belongs to the application, whatever library it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from taskharbor.errors import ConfigurationError
from taskharbor.sync import in_sync_call, on_loop_thread

T = TypeVar("T")
Arguments = Sequence[str | None]


class Caller(ABC):
    """A connection of the application.

    The methods are coroutines for all libraries; those of a synchronous connection never suspend.
    """

    system: ClassVar[str]  # the kind of database, by the name that SQLAlchemy and Django have for it
    store: ClassVar[str]  # the same, for an error's text
    takes: ClassVar[str]  # what `transaction()` takes on this store
    asynchronous: ClassVar[bool]

    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def reaches_here(self) -> bool:
        """Whether the code that runs now can use the connection.

        An asynchronous connection belongs to its loop, a synchronous one to the caller's thread; the private loop of
        the synchronous surface is neither.
        """
        return not on_loop_thread() and not (self.asynchronous and in_sync_call())

    def refuse_synchronous(self) -> None:
        if not self.reaches_here():
            raise ConfigurationError(
                "the connection given to transaction() is asynchronous, and a synchronous call cannot wait for it; "
                "use the asynchronous form: await task.aenqueue(…)"
            )


class PostgresCaller(Caller):
    """A connection to PostgreSQL. Statements go in with text as their arguments, and text comes out."""

    system = "postgresql"
    store = "PostgreSQL"
    takes = "of asyncpg, of psycopg 3, SQLAlchemy's connection or session, or django.db.connection"

    @staticmethod
    @abstractmethod
    def placeholder(number: int) -> str:
        """How the library writes the argument of this number, from 1, in a statement."""

    @abstractmethod
    async def ensure_transaction(self) -> None:
        """Refuse a connection that would commit each statement by itself."""

    @abstractmethod
    async def value(self, statement: str, arguments: Arguments) -> str | None:
        """The one value of the one row that the statement gives."""

    @abstractmethod
    async def do(self, statement: str, arguments: Arguments) -> None:
        """Execute a statement that gives nothing."""


class SQLiteConnection(Protocol):
    """What the driver's statements use of a connection to SQLite."""

    def execute(self, statement: str, parameters: Any = (), /) -> Any: ...

    def executemany(self, statement: str, rows: Any, /) -> Any: ...

    @property
    def raw(self) -> Any:
        """The `sqlite3.Connection`, or an object with its attributes."""


class SQLiteCaller(Caller):
    """A connection to SQLite. An operation of the driver runs where the library lets its connection be used."""

    system = "sqlite"
    store = "SQLite"
    takes = "a sqlite3.Connection, SQLAlchemy's connection or session, or django.db.connection"
    begin: ClassVar[str]  # how an application begins a transaction where the library does not

    @abstractmethod
    async def run(self, operation: Callable[[SQLiteConnection], T]) -> T:
        """Call the operation with the connection, as a part of the transaction that the library commits."""


def named(arguments: Arguments) -> dict[str, str | None]:
    return {f"a{number}": argument for number, argument in enumerate(arguments, 1)}


def no_transaction(begin: str) -> ConfigurationError:
    return ConfigurationError(
        "the connection given to transaction() has no transaction open and commits each statement by itself "
        f"(autocommit), so the job would exist whatever you do next; begin one first: {begin}"
    )
