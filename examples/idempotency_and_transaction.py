"""Making a job exactly when an order is made: an idempotency key, and the caller's own transaction."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from taskharbor import Harbor, Worker


def place_order(harbor: Harbor, database: sqlite3.Connection, number: int, *, stock: int) -> None:
    """The order and the job that confirms it are committed together, or neither is."""
    with database, harbor.transaction(database):
        database.execute("INSERT INTO orders (number) VALUES (?)", (number,))
        harbor.enqueue("order:confirm", {"number": number}, idempotency_key=f"order-{number}")
        if stock == 0:
            raise ValueError("sold out")  # sqlite3 rolls back: no order, and no job


def main(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database, Harbor(f"sqlite:///{path}") as harbor:
        database.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
        harbor.migrate()  # explicit, because the file belongs to an application

        @harbor.task(name="order:confirm")
        def confirm(number: int) -> str:
            return f"order {number} confirmed"

        place_order(harbor, database, 1, stock=5)
        try:
            place_order(harbor, database, 2, stock=0)
        except ValueError as error:
            print(f"order 2: {error}")
        assert database.execute("SELECT number FROM orders").fetchall() == [(1,)]
        assert harbor.jobs.counts()["ready"] == 1

        # A second enqueue under the same key gives the job that exists, and changes nothing.
        again = confirm.using(idempotency_key="order-1").enqueue(number=999)
        assert again.existed
        assert again.payload == {"number": 1}

        Worker(harbor).drain_sync()
        print(again.result(timeout=10))
        assert again.result(timeout=10) == "order 1 confirmed"
        assert confirm.using(idempotency_key="order-1").enqueue(number=1).existed  # also when it is finished


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(Path(folder) / "shop.db")
