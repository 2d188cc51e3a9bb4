"""asyncpg: a connection, or one that a pool has lent."""

from __future__ import annotations

from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from taskharbor.drivers.callers.caller import Arguments, PostgresCaller, no_transaction


class AsyncpgCaller(PostgresCaller):
    asynchronous = True

    def __init__(self, connection: asyncpg.Connection[Any] | PoolConnectionProxy[Any]) -> None:
        self._connection = connection

    @staticmethod
    def placeholder(number: int) -> str:
        return f"${number}"

    def in_transaction(self) -> bool:
        return self._connection.is_in_transaction()

    async def ensure_transaction(self) -> None:
        if not self.in_transaction():
            raise no_transaction("async with connection.transaction(): …")

    async def value(self, statement: str, arguments: Arguments) -> str | None:
        # Prepared and cached as the caller has configured: not at all where a pooler is in between.
        answer: str | None = await self._connection.fetchval(statement, *arguments)
        return answer

    async def do(self, statement: str, arguments: Arguments) -> None:
        await self._connection.execute(statement, *arguments)
