"""Real database roles for a test: an owner who migrates, and those that `taskharbor roles` grants something to."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import asyncpg

from taskharbor.drivers.postgres import PostgresDriver
from taskharbor.drivers.postgres.roles import Role, grants, quoted_role
from tests.postgres import store

T = TypeVar("T")

SCHEMA = "Harbor_1"  # one that has to be quoted
_serial = itertools.count(1)


class Crew:
    """Roles of one database; the tables belong to `owner`, who is no superuser."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        prefix = f'crew "{os.getpid()}_{next(_serial)}'  # names of roles hold for the whole server
        self.owner = f"{prefix} owner"
        self.names = {role: f"{prefix} {role}" for role in Role}

    def everybody(self) -> list[str]:
        return [self.owner, *self.names.values()]

    def url(self, name: str) -> str:
        from urllib.parse import quote

        return self.dsn.replace("harbor@", f"{quote(name)}@") + f"?schema={SCHEMA}"

    def driver(self, name: str) -> PostgresDriver:
        return PostgresDriver.from_url(self.url(name))

    def run(self, name: str, work: Any) -> Any:
        """Let somebody do something with a driver of his own."""

        async def whole() -> Any:
            driver = self.driver(name)
            try:
                return await work(driver)
            finally:
                await driver.close()

        return asyncio.run(whole())

    def as_superuser(self, *statements: str) -> None:
        store.execute(self.dsn, *statements)

    def as_(self, name: str, *statements: str) -> None:
        store.execute(self.url(name).partition("?")[0], *statements)

    def grant(self, names: Mapping[Role, Sequence[str]] | None = None) -> None:
        """What an operator does: the owner runs what `taskharbor roles` prints."""
        given = names or {role: [name] for role, name in self.names.items()}
        self.as_(self.owner, "; ".join(["BEGIN", *grants(SCHEMA, given), "COMMIT"]))

    def fetch(self, query: str, *arguments: object) -> list[asyncpg.Record]:
        async def run() -> list[asyncpg.Record]:
            connection = await asyncpg.connect(self.dsn)
            try:
                rows: list[asyncpg.Record] = await connection.fetch(query, *arguments)
                return rows
            finally:
                await connection.close()

        return asyncio.run(run())


@contextmanager
def crew() -> Iterator[Crew]:
    """A migrated schema in a database of its own, with the grants made."""
    with store.database() as dsn:
        crew = Crew(dsn)
        database = dsn.rpartition("/")[2]
        crew.as_superuser(*[f"CREATE ROLE {quoted_role(name)} LOGIN" for name in crew.everybody()])
        crew.as_superuser(f"GRANT CREATE ON DATABASE {database} TO {quoted_role(crew.owner)}")
        try:
            crew.run(crew.owner, lambda driver: driver.migrate())
            crew.grant()
            yield crew
        finally:
            for name in reversed(crew.everybody()):
                crew.as_superuser(
                    f"DROP OWNED BY {quoted_role(name)} CASCADE", f"DROP ROLE {quoted_role(name)}"
                )


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)
