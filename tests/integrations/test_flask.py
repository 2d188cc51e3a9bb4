"""Flask: handlers run in the application's context, and requests enqueue in their transaction."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask import Flask, current_app, g, has_app_context
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy import text

from taskharbor import ConfigurationError, Harbor, Worker
from taskharbor.integrations.flask import init_app


def test_handler_runs_in_a_context_of_its_own() -> None:
    app, harbor = Flask("shop"), Harbor("memory://")
    torn_down: list[str] = []
    app.teardown_appcontext(lambda _: torn_down.append(g.name))
    init_app(app, harbor)
    assert app.extensions["taskharbor"] is harbor

    def name_of(name: str) -> str:
        assert "name" not in g  # nothing is left of another job
        g.name = name
        return f"{current_app.name} {name}"

    @harbor.task
    def plain(name: str) -> str:
        return name_of(name)

    @harbor.task
    async def asynchronous(name: str) -> str:
        return name_of(name)

    @harbor.task(max_attempts=1)
    def fails(name: str) -> None:
        name_of(name)
        raise ValueError(name)

    jobs = [plain.enqueue("a"), asynchronous.enqueue("b"), plain.enqueue("c")]
    failed = fails.enqueue("d")
    Worker(harbor).drain_sync()
    assert [job.result(timeout=0) for job in jobs] == ["shop a", "shop b", "shop c"]
    assert failed.refresh().state == "dead"
    assert sorted(torn_down) == ["a", "b", "c", "d"]
    assert not has_app_context()


def test_other_middlewares_have_the_context_and_the_last_application_counts() -> None:
    harbor = Harbor("memory://")
    seen: list[str] = []

    @harbor.middleware
    async def sees(ctx, call):
        seen.append(current_app.name)
        return await call()

    @harbor.task
    def noop() -> None: ...

    init_app(Flask("first"), harbor)
    init_app(Flask("second"), harbor)
    noop.enqueue()
    Worker(harbor).drain_sync()
    assert seen == ["second"]


def test_other_objects_are_refused() -> None:
    harbor = Harbor("memory://")
    with pytest.raises(ConfigurationError, match="the Flask application first"):
        init_app(harbor, Flask("shop"))  # type: ignore[arg-type]


def test_request_that_rolls_back_enqueues_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    app, harbor = Flask("shop"), Harbor(url)
    app.config["SQLALCHEMY_DATABASE_URI"] = url
    db = SQLAlchemy(app)
    init_app(app, harbor)
    harbor.migrate()

    @harbor.task
    def confirm(number: int) -> int:
        return int(db.session.scalar(text("SELECT number FROM orders WHERE number = :n"), {"n": number}))

    @app.post("/orders/<int:number>")
    def place(number: int) -> str:
        with harbor.transaction(db.session):
            db.session.execute(text("INSERT INTO orders VALUES (:n)"), {"n": number})
            confirm.enqueue(number)
            if number == 13:
                raise ValueError("refused")
            db.session.commit()
        return "placed"

    with app.app_context():
        db.session.execute(text("CREATE TABLE orders (number INTEGER)"))
        db.session.commit()
    client = app.test_client()
    assert client.post("/orders/13").status_code == 500
    assert harbor.jobs.counts()["ready"] == 0
    assert client.post("/orders/7").status_code == 200
    [job] = harbor.jobs.list()
    Worker(harbor).drain_sync()
    assert job.result(timeout=0) == 7
    with app.app_context():
        assert list(db.session.scalars(text("SELECT number FROM orders"))) == [7]
        db.engine.dispose()
    harbor.close()
