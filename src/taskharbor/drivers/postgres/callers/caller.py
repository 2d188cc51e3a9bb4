"""What is asked of somebody else's connection, whatever library it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from taskharbor.errors import ConfigurationError

Arguments = Sequence[str | None]


class Caller(ABC):
    """A connection of the caller's. Statements go in with text as their arguments, and text comes out.

    The methods are coroutines for all of them; those of a synchronous connection never suspend.
    """

    asynchronous: ClassVar[bool]

    @staticmethod
    @abstractmethod
    def placeholder(number: int) -> str:
        """How the library writes the argument of this number, from 1, in a statement."""

    @abstractmethod
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    @abstractmethod
    async def ensure_transaction(self) -> None:
        """Refuse a connection that would commit each statement by itself."""

    @abstractmethod
    async def value(self, statement: str, arguments: Arguments) -> str | None:
        """The one value of the one row that the statement gives."""

    @abstractmethod
    async def do(self, statement: str, arguments: Arguments) -> None:
        """Execute a statement that gives nothing."""


def named(arguments: Arguments) -> dict[str, str | None]:
    return {f"a{number}": argument for number, argument in enumerate(arguments, 1)}


def no_transaction(begin: str) -> ConfigurationError:
    return ConfigurationError(
        "the connection given to transaction() has no transaction open and commits each statement by itself "
        f"(autocommit), so the job would exist whatever you do next; begin one first: {begin}"
    )
