"""Flask: handlers run inside the application's context."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from flask import Flask

from taskharbor.codec import shorten
from taskharbor.errors import ConfigurationError

if TYPE_CHECKING:
    from taskharbor.client.harbor import Harbor
    from taskharbor.context import Context


class _InContext:
    """A middleware: one application context for each execution, torn down at its end."""

    def __init__(self, app: Flask) -> None:
        self.app = app

    async def __call__(self, ctx: Context, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        with self.app.app_context():
            return await call()


def init_app(app: Flask, harbor: Harbor) -> None:
    """Run the handlers of this harbor inside the application's context.

    `current_app`, `g` and extensions such as Flask-SQLAlchemy work in a handler as in a request: what they tear down
    after a request, they tear down after an attempt. The harbor is at `app.extensions["taskharbor"]`. Called again, as
    a factory of applications does in tests, the last application counts.
    """
    if not isinstance(app, Flask):
        raise ConfigurationError(f"init_app takes the Flask application first, not {shorten(app)}")
    app.extensions["taskharbor"] = harbor
    for known in harbor.middlewares:
        if isinstance(known, _InContext):
            known.app = app
            return
    # The outermost, so that other middlewares have the context as well.
    harbor.middlewares.insert(0, _InContext(app))
